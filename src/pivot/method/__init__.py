"""The paper's mathematics, and that of every compared method, as pure functions of tensors.

Read beside the paper: `advantage` (Eq. 2, 14, 15), `policy_loss` (3), `replay` (6, 7), `calibration` (8, 9), `visual`
(10-13, 25-27), `objective` (16); `terms`, `vppo`, `surrogates` and `noise` hold the baselines, `variants` our own
changes. `method` composes parts to a `Method`, `presets` names the known ones, and `allocation` and `objective` run any
of them on a `Batch`.

Shapes: P prompts, G responses per prompt, B = P*G responses, T response tokens, N tokens or candidates, A anchors,
V vocabulary, D hidden size. Masks are bool or float, 1 on valid response tokens; outputs are 0 where masked, and
padding values never matter. `docs/paper_map.md` leads from each equation to its function.
"""

from pivot.method.advantage import (
    GroupAdvantage,
    add_visual_advantage,
    group_advantage,
    modulate_advantage,
    normalised_advantage,
    protect_sign,
)
from pivot.method.allocation import allocate_advantage
from pivot.method.batch import Batch, Diagnostics
from pivot.method.calibration import (
    Calibration,
    anchor_mean_gap,
    calibration_loss,
    calibration_terms,
    count_anchored_tokens,
    leaky_margin,
    position_gap,
    position_zero_gap,
    sequence_mean_gap,
    sequence_sum_gap,
)
from pivot.method.importance import Mismatch, sampler_mismatch, truncated_importance
from pivot.method.method import Method, UnknownSetting
from pivot.method.noise import NoisyRollouts, noise_level
from pivot.method.numerics import k3_divergence, on_valid, sequence_mean, token_mean, valid_logprobs
from pivot.method.objective import count_totals, objective
from pivot.method.part import Bounds, LossTerm, Part, Totals
from pivot.method.pepo import PerceptionExploration, perception_weights
from pivot.method.pgpo import PerceptionGrounding, dependency_score, gated_weights
from pivot.method.policy_loss import (
    PolicyLoss,
    PolicyTerms,
    Surrogate,
    policy_loss,
    policy_terms,
    sequence_ratio_logprobs,
)
from pivot.method.presets import PRESETS, preset, register_method
from pivot.method.replay import Anchors, Replay, StoredGroups, num_stable, select_anchor
from pivot.method.statistics import TokenStatistics, token_statistics
from pivot.method.surrogates import CappedWeight, SoftGate, capped_weight_terms, soft_gate_terms
from pivot.method.terms import (
    DoubleEntropy,
    EntropyPenalty,
    OffPolicy,
    Perception,
    ReferenceKL,
    SupervisedTarget,
    nll_penalty,
    shaped_ratio_terms,
)
from pivot.method.variants import (
    VariantAllocation,
    absolute_support,
    restrain_utility,
    support_separation,
    weigh_advantage,
)
from pivot.method.visual import (
    ImageCorruption,
    VisualAllocation,
    VisualPart,
    detrend,
    entropy_gate,
    future_support,
    token_utility,
    visual_support,
)
from pivot.method.vppo import TokenSelection, shaping_factor, top_token_mask

__all__ = [
    "PRESETS",
    "Anchors",
    "Batch",
    "Bounds",
    "Calibration",
    "CappedWeight",
    "Diagnostics",
    "DoubleEntropy",
    "EntropyPenalty",
    "GroupAdvantage",
    "ImageCorruption",
    "LossTerm",
    "Method",
    "Mismatch",
    "NoisyRollouts",
    "OffPolicy",
    "Part",
    "Perception",
    "PerceptionExploration",
    "PerceptionGrounding",
    "PolicyLoss",
    "PolicyTerms",
    "ReferenceKL",
    "Replay",
    "SoftGate",
    "StoredGroups",
    "SupervisedTarget",
    "Surrogate",
    "TokenSelection",
    "TokenStatistics",
    "Totals",
    "UnknownSetting",
    "VariantAllocation",
    "VisualAllocation",
    "VisualPart",
    "absolute_support",
    "add_visual_advantage",
    "allocate_advantage",
    "anchor_mean_gap",
    "calibration_loss",
    "calibration_terms",
    "capped_weight_terms",
    "count_anchored_tokens",
    "count_totals",
    "dependency_score",
    "detrend",
    "entropy_gate",
    "future_support",
    "gated_weights",
    "group_advantage",
    "k3_divergence",
    "leaky_margin",
    "modulate_advantage",
    "nll_penalty",
    "noise_level",
    "normalised_advantage",
    "num_stable",
    "objective",
    "on_valid",
    "perception_weights",
    "policy_loss",
    "policy_terms",
    "position_gap",
    "position_zero_gap",
    "preset",
    "protect_sign",
    "register_method",
    "restrain_utility",
    "sampler_mismatch",
    "select_anchor",
    "sequence_mean",
    "sequence_mean_gap",
    "sequence_ratio_logprobs",
    "sequence_sum_gap",
    "shaped_ratio_terms",
    "shaping_factor",
    "soft_gate_terms",
    "support_separation",
    "token_mean",
    "token_statistics",
    "token_utility",
    "top_token_mask",
    "truncated_importance",
    "valid_logprobs",
    "visual_support",
    "weigh_advantage",
]
