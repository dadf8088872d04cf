"""Sampling: G responses per prompt, by this project's own decoder (`native`) or by vLLM (`vllm_sampler`)."""

from pivot.sampling.base import PolicySampler, Refill, Sampler, SampleRequest, Sampling, choose_sampler
from pivot.sampling.native import NativeSampler, sample_responses

__all__ = [
    "NativeSampler",
    "PolicySampler",
    "Refill",
    "SampleRequest",
    "Sampler",
    "Sampling",
    "choose_sampler",
    "sample_responses",
]
