"""Sampling: G responses per prompt, by this project's own decoder (`native`) or by vLLM (`vllm_sampler`)."""

from pivot.sampling.base import Sampler, SampleRequest, Sampling
from pivot.sampling.native import NativeSampler, sample_responses

__all__ = ["NativeSampler", "SampleRequest", "Sampler", "Sampling", "sample_responses"]
