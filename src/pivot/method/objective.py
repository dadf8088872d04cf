"""The final loss (Eq. 16) of any method, for one micro-batch of a global minibatch."""

from __future__ import annotations

from torch import Tensor

from pivot.method.batch import Batch
from pivot.method.method import Method
from pivot.method.part import LossTerm, Totals


def count_totals(method: Method, batch: Batch) -> Totals:
    """The normalisers of these rows; sum them over the micro-batches of a minibatch."""
    responses = batch.responses()
    valid_BT, loss = responses.mask_BT.bool(), method.policy_loss
    constant = batch.max_tokens if loss.constant_tokens is None else loss.constant_tokens
    if loss.aggregation == "constant" and constant is None:
        raise ValueError("constant_tokens must be given where the batch has no max_tokens, got None")
    return Totals(
        num_tokens=int(valid_BT.sum()),
        num_sequences=int(valid_BT.any(dim=1).sum()),
        counts={term.name: term.count(_rows(term, batch, responses)) for term in method.terms},
        aggregation=loss.aggregation,
        constant_tokens=constant or 1,
    )


def objective(method: Method, batch: Batch, totals: Totals) -> tuple[Tensor, dict[str, Tensor]]:
    """L_RLVR + lambda_exp * L_exp (Eq. 16): the policy loss and the method's other terms.

    Each term is this micro-batch's sum over the *global* minibatch's normaliser: losses, gradients and values
    of the micro-batches add up to those of the minibatch, however it is split.

    Returns:
        The loss, and detached scalars: `policy`, every term's unweighted value under its name, and `ratio_sum`,
        `ratio_tokens`, `ratio_max`, `clip_low_tokens`, `clip_high_tokens`, `dual_clip_tokens`. All but
        `ratio_max` add up over micro-batches.
    """
    responses = batch.responses()
    loss, values = method.policy_loss(responses, totals)
    for term in method.terms:
        if term.weight != 0:
            value = term(_rows(term, batch, responses), totals)
            values[term.name] = value.detach()
            loss = loss + term.weight * value
    return loss, values


def _rows(term: LossTerm, batch: Batch, responses: Batch) -> Batch:
    """Supervised targets are rows for the terms that ask for them."""
    return batch if "target_B" in term.needs() else responses
