"""The entropy penalty of all compared models, in its two forms."""

from __future__ import annotations

from torch import Tensor

from pivot.method.aggregation import token_mean
from pivot.method.numerics import valid_logprobs
from pivot.method.shapes import check_floating, check_mask


def nll_penalty(logprobs_BT: Tensor, mask_BT: Tensor, *, num_tokens: float | Tensor | None = None) -> Tensor:
    """Token mean of -log pi(y_t) on sampled tokens, as VPPO and PAPO compute it.

    Exactly on-policy the expectation of its gradient is zero: it estimates the entropy, but its gradient does
    not estimate the entropy's.
    """
    check_floating("logprobs_BT", logprobs_BT, ("B", "T"))
    check_mask("mask_BT", mask_BT, logprobs_BT.shape)
    return token_mean(-valid_logprobs(logprobs_BT, mask_BT.bool()), mask_BT, num_tokens=num_tokens)


def exact_penalty(entropy_BT: Tensor, mask_BT: Tensor, *, num_tokens: float | Tensor | None = None) -> Tensor:
    """Token mean of the full-vocabulary entropy H_t, with its true gradient."""
    check_floating("entropy_BT", entropy_BT, ("B", "T"))
    return token_mean(entropy_BT, mask_BT, num_tokens=num_tokens)
