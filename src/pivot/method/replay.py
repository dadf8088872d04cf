"""Self-calibrated experience replay: when prompts return (Eq. 6) and which stored response is the anchor (Eq. 7)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from pivot.method.part import ANY, Bounds, Part
from pivot.method.shapes import check_floating


def select_anchor(entropy_N: Tensor, dependency_N: Tensor, *, keep: float = 0.5) -> int:
    """argmax of V(y) among the max(1, floor(keep * N)) candidates with the lowest H(y) (Eq. 7).

    Ties go to the lower entropy, then to the later index: hand the candidates in oldest first.

    Args:
        entropy_N: [N], H(y), each candidate's mean token entropy (Eq. 5).
        dependency_N: [N], V(y), each candidate's mean KL (Eq. 4), all under one corrupted image.
        keep: alpha, in (0, 1].

    Returns:
        The index of the anchor.
    """
    check_floating("entropy_N", entropy_N, ("N",))
    check_floating("dependency_N", dependency_N, entropy_N.shape)
    if not 0.0 < keep <= 1.0:
        raise ValueError(f"keep must lie in (0, 1], got {keep!r}")
    entropies, dependencies = entropy_N.tolist(), dependency_N.tolist()
    if not entropies:
        raise ValueError("entropy_N must hold at least one candidate, got shape [0]")
    for name, values in (("entropy_N", entropies), ("dependency_N", dependencies)):
        if not all(math.isfinite(value) for value in values):
            raise ValueError(f"{name} must be finite, got {values}")
    # 0.29 * 100 is 28.999...: the share is meant, not its rounding.
    num_kept = max(1, math.floor(keep * len(entropies) + 1e-9))
    by_entropy = sorted(range(len(entropies)), key=lambda index: (entropies[index], -index))
    return max(by_entropy[:num_kept], key=lambda index: dependencies[index])


@dataclass(frozen=True)
class Replay(Part):
    """Part of each batch comes from the experience buffer, at the frontier of what the policy can do."""

    bounds: ClassVar[Bounds] = {
        "replay_share": (0, 1),
        "solved_threshold": (0, 1),
        "warmup_share": (0, 1),
        "responses_per_prompt": (1, ANY),
    }

    replay_share: float = 0.5
    """N_off / N once replay is active (App. C.2)."""
    solved_threshold: float = 0.45
    """Replay starts once the share of correct responses exceeds this (App. C.2)."""
    warmup_share: float = 0.2
    """Replay starts after this share of the steps at the latest; the value is not in the paper."""
    responses_per_prompt: int | None = None
    """Most responses kept per prompt; null for the group size G. Not in the paper."""


@dataclass(frozen=True)
class Anchors(Part):
    """Where the anchors y_exp come from and how they are chosen; a loss term says what they are for."""

    bounds: ClassVar[Bounds] = {"anchor_keep": (1e-9, 1)}

    anchor_source: Literal["buffer", "expert"] = "buffer"
    """Own experience (Eq. 7), or demonstrations from a file (CalibRL)."""
    anchor_keep: float = 0.5
    """alpha: the share of lowest-entropy candidates among which the anchor is chosen (Sec. 4.1)."""
    anchor_scores: Literal["current", "collected"] = "current"
    """Score candidates under today's weights (Sec. 4.1), or keep the scores of their collection."""
