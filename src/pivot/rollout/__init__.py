"""Sampling: G responses a prompt from one prefill."""

from pivot.rollout.decoding import sample_responses
from pivot.rollout.sampling import Sampling

__all__ = ["Sampling", "sample_responses"]
