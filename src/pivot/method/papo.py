"""PAPO's perception term and double entropy."""

from __future__ import annotations

from torch import Tensor

from pivot.method.aggregation import token_mean
from pivot.method.entropy import nll_penalty
from pivot.method.policy import k3_divergence


def perception_divergence(
    logprobs_BT: Tensor,
    corrupted_logprobs_BT: Tensor,
    mask_BT: Tensor,
    *,
    maximum: float | None = 10.0,
    num_tokens: float | Tensor | None = None,
) -> Tensor:
    """Token mean of k3(log p, log q), which PAPO *maximises*: it enters the loss with a negative weight.

    With weight gamma this is a policy gradient with the token advantage gamma * c_t. log q is a constant.
    """
    divergence_BT = k3_divergence(logprobs_BT, corrupted_logprobs_BT, mask_BT, maximum=maximum)
    return token_mean(divergence_BT, mask_BT, num_tokens=num_tokens)


def double_entropy(
    logprobs_BT: Tensor,
    corrupted_logprobs_BT: Tensor,
    mask_BT: Tensor,
    *,
    clean_share: float = 0.5,
    num_tokens: float | Tensor | None = None,
) -> Tensor:
    """clean_share * mean(-log p) + (1 - clean_share) * mean(-log q): the mean of PAPO's two entropy terms.

    log q is a constant, so the second part moves the number and no weight.
    """
    clean = nll_penalty(logprobs_BT, mask_BT, num_tokens=num_tokens)
    corrupted = nll_penalty(corrupted_logprobs_BT.detach(), mask_BT, num_tokens=num_tokens)
    return clean_share * clean + (1 - clean_share) * corrupted
