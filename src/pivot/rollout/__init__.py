"""Sampling: G responses a prompt from one prefill."""

from pivot.rollout.decoding import plan_batches, sample_responses
from pivot.rollout.sampling import Sampling

__all__ = ["Sampling", "plan_batches", "sample_responses"]
