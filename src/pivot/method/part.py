"""What every part of a method has in common: a frozen dataclass with its numbers, checked, and one function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import ClassVar, Literal, get_args, get_origin, get_type_hints

from torch import Tensor

from pivot.method.batch import Batch
from pivot.method.numerics import sequence_mean, token_mean

ANY = float("inf")
Bounds = Mapping[str, tuple[float, float]]
"""Field -> its smallest and largest value."""


@dataclass(frozen=True)
class Part:
    """A part of a method. Its fields are settings, `method.FIELD`; the docstring under each is its help text.

    Example:
        @dataclass(frozen=True)
        class Clamp(Part):
            bounds: ClassVar[Bounds] = {"limit": (0, 10)}

            limit: float = 2.0
            \"\"\"Largest value. Not in the paper.\"\"\"
    """

    bounds: ClassVar[Bounds] = {}
    """Checked when the part is made."""

    def __post_init__(self) -> None:
        for name, choices in _choices(type(self)).items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")
        for name, (low, high) in self.bounds.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ValueError(f"{name} must lie in [{low:g}, {high:g}], got {value!r}")

    def needs(self) -> tuple[str, ...]:
        """The optional tensors of a `Batch` that this part reads."""
        return ()


@dataclass(frozen=True)
class Totals:
    """Normalisers of the *global* minibatch, over all its micro-batches and ranks; they add up."""

    num_tokens: float
    """Valid response tokens."""
    num_sequences: float
    """Responses with a valid token."""
    counts: Mapping[str, float]
    """Name of a loss term -> its own normaliser."""
    aggregation: Literal["token", "sequence", "constant"] = "token"
    """How the method's policy loss takes the mean."""
    constant_tokens: float = 1.0
    """Tokens per response that the mean `constant` divides by."""

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.num_tokens + other.num_tokens,
            self.num_sequences + other.num_sequences,
            {name: count + other.counts[name] for name, count in self.counts.items()},
            self.aggregation,
            self.constant_tokens,
        )

    def mean(self, values_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """The mean of the method's policy loss over all valid tokens; tokens left out of the loss hold 0."""
        if self.aggregation == "sequence":
            return sequence_mean(values_BT, mask_BT, num_sequences=self.num_sequences)
        if self.aggregation == "constant":
            normaliser = max(self.num_sequences, 1) * self.constant_tokens
            return token_mean(values_BT, mask_BT, num_tokens=normaliser)
        return token_mean(values_BT, mask_BT, num_tokens=self.num_tokens)


@dataclass(frozen=True)
class LossTerm(Part):
    """A summand of the loss beside the policy loss."""

    name: ClassVar[str]
    """Its metric is `loss/NAME`."""

    @property
    def weight(self) -> float:
        """What its value is multiplied by; at 0 the term is not computed."""
        raise NotImplementedError

    def __call__(self, batch: Batch, totals: Totals) -> Tensor:
        """The unweighted value: this micro-batch's sum over a normaliser of the global minibatch."""
        raise NotImplementedError

    def count(self, batch: Batch) -> int:
        """These rows' share of the term's own normaliser, `totals.counts[self.name]`."""
        return int(batch.mask_BT.bool().sum())


@cache
def _choices(part: type[Part]) -> dict[str, tuple[str, ...]]:
    """Field -> its allowed words, from the annotations."""
    hints = get_type_hints(part)
    return {f.name: get_args(hints[f.name]) for f in fields(part) if get_origin(hints[f.name]) is Literal}
