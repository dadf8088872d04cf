"""Sampling settings as vLLM and SGLang spell them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pivot.sampling import Sampling

NEVER = -100.0
"""The strongest bias that both take."""
SEEDS = {"vllm": 2**62, "sglang": 2**31 - 1}
"""Seeds stay below these."""


def server_settings(
    server: str, sampling: Sampling, seed: int, *, ends: Sequence[int], banned: Sequence[int]
) -> dict[str, Any]:
    """One sample of the (tempered, truncated) distribution, ended by the model's own ends and free of image tokens.

    Example:
        server_settings("vllm", Sampling(max_tokens=2048), 1, ends=[2], banned=[11])["top_k"] == -1
    """
    settings: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "max_tokens": sampling.max_tokens,
        "stop_token_ids": list(ends),
    }
    if server == "sglang":
        bias = {str(token): NEVER for token in banned}
        return {**settings, "logit_bias": bias, "sampling_seed": seed % SEEDS["sglang"]}
    return {**settings, "logit_bias": dict.fromkeys(banned, NEVER), "seed": seed % SEEDS["vllm"]}
