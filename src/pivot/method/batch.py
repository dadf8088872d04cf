"""The rows of a training step as tensors. A minibatch and a micro-batch are selections of rows of the same type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """B response rows of at most T tokens. Only `new_logprobs_BT` and `new_entropy_BT` carry a gradient.

    The rows of a whole step are prompt-major: row p * G + g is response g of prompt p. Values of padding tokens
    are arbitrary.

    Example:
        batch, diagnostics = allocate_advantage(method, batch)
        micro = batch.select(rows).with_forward(new_logprobs_BT)
        loss, values = objective(method, micro, totals)
    """

    mask_BT: Tensor
    """Valid response tokens: EOS is valid, padding is not."""
    rewards_B: Tensor
    """R, the accuracy reward or the weighted sum of reward functions."""
    format_B: Tensor
    """The format reward."""
    group_size: int
    """G, responses per prompt."""
    clean_logprobs_BT: Tensor
    """log p at the weights of the step's start, under the clean image."""
    entropy_BT: Tensor
    """H, the full-vocabulary entropy of the same distribution."""
    old_logprobs_BT: Tensor
    """The ratio's denominator: log p, or the recorded log-probs of an off-policy row."""

    corrupted_logprobs_BT: Tensor | None = None
    """log q at the weights of the step's start, under the corrupted image."""
    similarity_BT: Tensor | None = None
    """VS: the mean cosine of a token's hidden states and those of its prompt's image tokens, over all layers."""
    progress: float = 1.0
    """Share of training that has passed: 0 in the first step, 1 in the last; for schedules of a method."""
    reference_logprobs_BT: Tensor | None = None
    """Under the frozen model that training started from."""

    success_B: Tensor | None = None
    """bool: responses that count as correct; None: those with a reward above one half."""
    sampler_logprobs_BT: Tensor | None = None
    """As the program that sampled gave them; NaN for rows that it did not sample. None: the policy itself sampled."""
    importance_weight_BT: Tensor | None = None
    """Weights of the policy loss, by token (`truncated_importance`); None: all are 1."""

    minibatch_B: Tensor | None = None
    """Index of the global minibatch that each row belongs to; None: all rows are one minibatch."""
    off_policy_B: Tensor | None = None
    """bool: rows that are stored experiences in a slot of their group (Off-PG)."""
    target_B: Tensor | None = None
    """bool: rows that are anchors trained on as supervised targets (Off-SFT), not responses of this step."""
    anchor_logprob_B: Tensor | None = None
    """Mean token log-prob of the row's anchor (`seq_sum`: their sum); NaN for rows without an anchor."""
    anchor_logprobs_BT: Tensor | None = None
    """The anchor's log-probs by token index; NaN past its end and for rows without an anchor."""

    advantage_BT: Tensor | None = None
    """A_final: what the policy loss takes; a result of `allocate_advantage`, as are the next two."""
    policy_mask_BT: Tensor | None = None
    """bool: tokens in the policy loss, VPPO's choice or all valid ones."""
    group_advantage_B: Tensor | None = None
    """A_i of the accuracy reward (Eq. 2)."""

    new_logprobs_BT: Tensor | None = None
    """Under the weights being trained, from the forward pass of this micro-batch."""
    new_entropy_BT: Tensor | None = None
    """Full-vocabulary entropy of the same pass, for the `exact` entropy penalty."""

    stored_B: Tensor | None = None
    """bool: rows of stored groups (SSR), whose old log-probs are those of the step that sampled them."""
    max_tokens: int | None = None
    """The length limit of responses, the constant that `aggregation=constant` divides by."""

    @property
    def correct_B(self) -> Tensor:
        """bool: responses that count as correct, for the sign s (Eq. 8) and sign protection (Eq. 15)."""
        return self.rewards_B > 0.5 if self.success_B is None else self.success_B.bool()

    @property
    def on_policy_mask_BT(self) -> Tensor:
        """Valid tokens that the policy itself sampled in this step."""
        if self.off_policy_B is None:
            return self.mask_BT.bool()
        return self.mask_BT.bool() & ~self.off_policy_B.bool()[:, None]

    @property
    def sampled_elsewhere_BT(self) -> Tensor:
        """Valid tokens whose sampler gave its own log-probs."""
        if self.sampler_logprobs_BT is None:
            return torch.zeros_like(self.mask_BT, dtype=torch.bool)
        return self.mask_BT.bool() & ~self.sampler_logprobs_BT.isnan()

    def by_prompt(self, values_B: Tensor) -> Tensor:
        """[P, G] view of values of all rows of a step."""
        return values_B.view(-1, self.group_size)

    def given(self, name: str) -> Tensor:
        """The tensor of that name; a ValueError if this batch lacks it."""
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"{name} must be a tensor for this method, got None")
        return value

    def take(self, rows: Tensor) -> Batch:
        """These rows (indices or bool), in that order, at the same width."""
        return self._map(lambda _, values: values[rows])

    def select(self, rows: Tensor) -> Batch:
        """`take`, cut to the longest of these rows."""
        used_T = self.mask_BT[rows].bool().any(dim=0).nonzero()
        width = int(used_T[-1]) + 1 if len(used_T) else 0
        return self._map(lambda name, v: v[rows, :width] if name.endswith("_BT") else v[rows])

    def responses(self) -> Batch:
        """The rows without the supervised targets."""
        return self if self.target_B is None else self.take(~self.target_B)

    def with_forward(self, new_logprobs_BT: Tensor, new_entropy_BT: Tensor | None = None) -> Batch:
        """The rows with the forward pass that carries gradients, all on its device and cut to their width."""
        moved, width = self._map(lambda _, values: values.to(new_logprobs_BT.device)), self.mask_BT.shape[1]
        entropy_BT = None if new_entropy_BT is None else new_entropy_BT[:, :width]
        return replace(moved, new_logprobs_BT=new_logprobs_BT[:, :width], new_entropy_BT=entropy_BT)

    def _map(self, change: Callable[[str, Tensor], Tensor]) -> Batch:
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **{name: change(name, value) for name, value in tensors.items()})


@dataclass(frozen=True)
class Diagnostics:
    """The intermediate values of an allocation, for metrics; None where the method has no such part."""

    support_BT: Tensor | None = None
    """c (Eq. 10), floored."""
    future_BT: Tensor | None = None
    """F (Eq. 11)."""
    gate_BT: Tensor | None = None
    """u (Eq. 12)."""
    utility_BT: Tensor | None = None
    """U (Eq. 13)."""
    protected_BT: Tensor | None = None
    """bool: tokens whose advantage sign protection (Eq. 15) set to 0."""
    support_clipped_share: Tensor | None = None
    """Share of valid tokens with c below its floor, a scalar."""
    beta: Tensor | None = None
    """The strength of Eq. 14 where it adapts (`adapt_beta`), a scalar."""
