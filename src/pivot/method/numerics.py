"""What keeps numbers finite: float32 or better, zeros under the padding, a floor under log-probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

LOGPROB_FLOOR = -1e4
"""Log-probabilities below it, -inf included, count as this: probability 0 then gives finite losses."""

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to +-20 before `exp`, as EasyR1, VPPO and PAPO do."""


def at_least_float32(values: Tensor) -> Tensor:
    """bfloat16 and float16 become float32; float32 and float64 stay."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def on_valid(values_BT: Tensor, valid_BT: Tensor) -> Tensor:
    """The values in float32 or better, 0 where invalid, whatever stood there (NaN too)."""
    return at_least_float32(values_BT).masked_fill(~valid_BT, 0.0)


def valid_logprobs(logprobs_BT: Tensor, valid_BT: Tensor) -> Tensor:
    """`on_valid`, floored at LOGPROB_FLOOR."""
    return on_valid(logprobs_BT, valid_BT).clamp(min=LOGPROB_FLOOR)


def clamped_log_ratio(numerator_BT: Tensor, denominator_BT: Tensor) -> Tensor:
    """log(numerator / denominator) from two log-probabilities, clamped to +-LOG_RATIO_LIMIT."""
    return (numerator_BT - denominator_BT).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def rank_valid(valid_BT: Tensor) -> tuple[Tensor, Tensor]:
    """rank_E(t) of Eq. 25, [B, T], of no meaning where masked, and the number n of valid tokens, [B, 1]."""
    rank_BT = valid_BT.cumsum(dim=1) - 1
    return rank_BT.clamp(min=0), valid_BT.sum(dim=1, keepdim=True)
