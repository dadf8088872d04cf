"""What a score depends on besides model and set, and how an entry of scores.json records it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

from pivot.data import template
from pivot.sampling import SampleRequest, Sampling

Dtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class EvaluationSettings:
    """How a model is evaluated.

    Example:
        EvaluationSettings(evaluation_request(8, Sampling(max_tokens=2048)), min_pixels=200704, max_pixels=1003520)
    """

    request: SampleRequest
    grader: str = "pivot"
    engine: str = "embedded"
    dtype: Dtype = "float32"
    min_pixels: int | None = None
    """Smallest image area after resizing; None: what the model's files say."""
    max_pixels: int | None = None
    """Largest image area after resizing; None: what the model's files say."""


def evaluation_request(
    num_samples: int, sampling: Sampling, seed: int = 0, blank: bool = False
) -> SampleRequest:
    """Draws that depend on (seed, prompt, sample) alone, so that a resumed evaluation is the same."""
    return SampleRequest(num_samples, sampling, key=(seed, "evaluation"), blank=blank)


def recorded(settings: EvaluationSettings) -> dict[str, Any]:
    """The `settings` of an entry: equal ones make scores comparable (but for the seed, which is only a draw)."""
    request = settings.request
    return {
        "blank": request.blank,
        "samples": request.num_samples,
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "top_k": request.sampling.top_k,
        "max_tokens": request.sampling.max_tokens,
        "seed": request.key[0],
        "grader": settings.grader,
        "engine": settings.engine,
        "dtype": settings.dtype,
        "min_pixels": settings.min_pixels,
        "max_pixels": settings.max_pixels,
        "template": hashlib.sha256(f"{template.SYSTEM}\0{template.INSTRUCTION}".encode()).hexdigest()[:16],
    }
