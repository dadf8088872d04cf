"""The paper's mathematics, and that of every compared method, as pure functions of tensors.

Shapes: P prompts, G responses a prompt, B = P*G responses, T response tokens, N tokens or candidates,
A anchors, V vocabulary, D hidden size. Masks are bool or float, 1 on valid response tokens; outputs are 0
where masked, and nothing depends on what stands under the padding. `docs/paper_map.md` leads from each
equation to its function.
"""

from pivot.method.advantage import add_visual_advantage, group_advantage, modulate_advantage, protect_sign
from pivot.method.aggregation import sequence_mean, token_mean
from pivot.method.allocation import Diagnostics, allocate_advantage
from pivot.method.anchor import anchor_logprob, select_anchor
from pivot.method.batch import Batch
from pivot.method.calibration import (
    anchor_mean_gap,
    calibration_loss,
    calibration_terms,
    count_anchored_tokens,
    leaky_guide_loss,
    leaky_margin,
    position_gap,
    position_zero_gap,
    sequence_mean_gap,
    sequence_sum_gap,
    softplus_margin,
)
from pivot.method.entropy import exact_penalty, nll_penalty
from pivot.method.objective import ObjectiveTotals, count_totals, objective
from pivot.method.offpolicy import sft_loss, shaped_ratio_loss, shaped_ratio_terms
from pivot.method.papo import double_entropy, perception_divergence
from pivot.method.policy import PolicyTerms, k3_divergence, policy_loss, policy_terms, reference_kl
from pivot.method.presets import PRESETS, preset
from pivot.method.restraint import absolute_support, restrain_utility, support_separation, weigh_advantage
from pivot.method.statistics import TokenStatistics, token_statistics
from pivot.method.switches import Method
from pivot.method.visual import (
    combine_utility,
    detrend,
    entropy_gate,
    future_support,
    token_utility,
    visual_support,
)
from pivot.method.vppo import shaping_factor, top_token_mask

__all__ = [
    "PRESETS",
    "Batch",
    "Diagnostics",
    "Method",
    "ObjectiveTotals",
    "PolicyTerms",
    "TokenStatistics",
    "absolute_support",
    "add_visual_advantage",
    "allocate_advantage",
    "anchor_logprob",
    "anchor_mean_gap",
    "calibration_loss",
    "calibration_terms",
    "combine_utility",
    "count_anchored_tokens",
    "count_totals",
    "detrend",
    "double_entropy",
    "entropy_gate",
    "exact_penalty",
    "future_support",
    "group_advantage",
    "k3_divergence",
    "leaky_guide_loss",
    "leaky_margin",
    "modulate_advantage",
    "nll_penalty",
    "objective",
    "perception_divergence",
    "policy_loss",
    "policy_terms",
    "position_gap",
    "position_zero_gap",
    "preset",
    "protect_sign",
    "reference_kl",
    "restrain_utility",
    "select_anchor",
    "sequence_mean",
    "sequence_mean_gap",
    "sequence_sum_gap",
    "sft_loss",
    "shaped_ratio_loss",
    "shaped_ratio_terms",
    "shaping_factor",
    "softplus_margin",
    "support_separation",
    "token_mean",
    "token_statistics",
    "token_utility",
    "top_token_mask",
    "visual_support",
    "weigh_advantage",
]
