"""Sampling: G responses a prompt from one prefill."""

from pivot.sampling.decoding import plan_batches, sample_responses
from pivot.sampling.sampling import Sampling

__all__ = ["Sampling", "plan_batches", "sample_responses"]
