"""Experience replay: when prompts return (Eq. 6), which stored response is the anchor (Eq. 7), which groups return."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
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
    by_entropy = sorted(range(len(entropies)), key=lambda index: (entropies[index], -index))
    return max(by_entropy[: num_stable(len(entropies), keep)], key=lambda index: dependencies[index])


def num_stable(num_candidates: int, keep: float = 0.5) -> int:
    """How many candidates of the lowest entropy V chooses among (Eq. 7): max(1, floor(keep * N))."""
    return max(1, math.floor(keep * num_candidates + 1e-9))  # 0.29 * 100 is 28.999... in floating point


@dataclass(frozen=True)
class Replay(Part):
    """Part of each batch comes from the experience buffer, at the frontier of what the policy can do."""

    bounds: ClassVar[Bounds] = {
        "replay_share": (0, 1),
        "solved_threshold": (0, 1),
        "warmup_share": (0, 1),
        "responses_per_prompt": (1, ANY),
        "bucket_sigma": (1e-9, ANY),
    }

    replay_share: float = 0.5
    """N_off / N once replay is active (App. C.2)."""
    solved_threshold: float = 0.45
    """Replay starts once the share of correct responses exceeds this (App. C.2)."""
    warmup_share: float = 0.2
    """Replay starts after this share of the steps at the latest; the value is not in the paper."""
    responses_per_prompt: int | None = None
    """Most responses kept per prompt; null for the group size G. Not in the paper."""
    replay_choice: Literal["variance", "uniform"] = "variance"
    """Which rows with 0 < p < 1 return: by their p(1-p) (Eq. 6), or each equally often, to see what Eq. 6 does."""
    bucket_sigma: float | None = None
    """ExGRPO: draw a success rate k/G by a normal density around 1/2 with this deviation; null: `replay_choice`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.replay_choice == "uniform" and self.bucket_sigma is not None:
            raise ValueError(
                "replay_choice=uniform and bucket_sigma are two ways to draw rows: set one of them"
            )


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
    anchor_choice: Literal["visual", "entropy"] = "visual"
    """The most image-dependent of the stable candidates (Eq. 7), or the one of lowest entropy (ExGRPO)."""


@dataclass(frozen=True)
class StoredGroups(Part):
    """Groups with equal rewards teach nothing: stored groups of earlier steps take their places.

    Both rules store whole groups with their log-probs and train on them with the policy loss, whose ratio is that to
    the stored log-probs. `by_advantage` is VL-Rethinker's selective sample replay (arXiv 2504.08837), which draws
    sample j with probability |A_j|^alpha / sum_k |A_k|^alpha. We draw a group with the sum of its samples' weights and
    give its sample j the weight G |A_j|^alpha / sum_k |A_k|^alpha: what G draws within the group give it on average.
    `by_score` is TRL's experimental trainer: groups of the largest sum_j |A_j| std(R) are kept, and drawn by it.
    """

    bounds: ClassVar[Bounds] = {"stored_groups": (1, ANY), "stored_alpha": (0, ANY)}

    flat_groups: Literal["by_advantage", "by_score"] = "by_advantage"
    """How stored groups are drawn: by |A|^alpha (VL-Rethinker), or by |A| times the rewards' deviation (TRL)."""
    stored_groups: int = 64
    """Most groups stored; `by_advantage` drops the oldest first, `by_score` the lowest score. TRL: 64."""
    stored_alpha: float = 1.0
    """alpha of `by_advantage`; 0 draws uniformly. VL-Rethinker's code uses 1."""

    def scores(self, advantage_PG: Tensor, rewards_PG: Tensor) -> Tensor:
        """[P] draw weights; 0 for groups of equal rewards."""
        size_PG = advantage_PG.abs()
        if self.flat_groups == "by_advantage":
            return self._powers(size_PG).sum(dim=1)
        return size_PG.sum(dim=1) * rewards_PG.std(dim=1)

    def sample_weights(self, advantage_PG: Tensor) -> Tensor:
        """[P, G] weights of the samples of drawn groups; their mean in a group is 1."""
        if self.flat_groups != "by_advantage":
            return torch.ones_like(advantage_PG)
        powers_PG = self._powers(advantage_PG.abs())
        total_P1 = powers_PG.sum(dim=1, keepdim=True).clamp(min=1e-30)
        return powers_PG * (advantage_PG.shape[1] / total_P1)

    def _powers(self, size_PG: Tensor) -> Tensor:
        """|A|^alpha, 0 for samples without an advantage even where alpha is 0."""
        return torch.where(size_PG > 0, size_PG**self.stored_alpha, 0.0)
