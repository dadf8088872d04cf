"""What a score depends on besides model and set, and how an entry of scores.json records it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

from pivot.data import template
from pivot.evaluate.sampling import Draws

Dtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class EvaluationSettings:
    """How a model is evaluated.

    Example:
        EvaluationSettings(Draws(8, Sampling(max_tokens=2048)), min_pixels=200704, max_pixels=1003520)
    """

    draws: Draws
    grader: str = "pivot"
    engine: str = "embedded"
    dtype: Dtype = "float32"
    min_pixels: int | None = None
    """Smallest image area after resizing; None: what the model's files say."""
    max_pixels: int | None = None
    """Largest image area after resizing; None: what the model's files say."""


def recorded(settings: EvaluationSettings) -> dict[str, Any]:
    """The `settings` of an entry: equal ones make scores comparable (but for the seed, which is only a draw)."""
    draws = settings.draws
    return {
        "blank": draws.blank,
        "samples": draws.num_samples,
        "temperature": draws.sampling.temperature,
        "top_p": draws.sampling.top_p,
        "top_k": draws.sampling.top_k,
        "max_tokens": draws.sampling.max_tokens,
        "seed": draws.seed,
        "grader": settings.grader,
        "engine": settings.engine,
        "dtype": settings.dtype,
        "min_pixels": settings.min_pixels,
        "max_pixels": settings.max_pixels,
        "template": hashlib.sha256(f"{template.SYSTEM}\0{template.INSTRUCTION}".encode()).hexdigest()[:16],
    }
