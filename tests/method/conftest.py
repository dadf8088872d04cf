"""Ragged random batches with NaN under the padding: whatever stands there must change nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor


@dataclass(frozen=True)
class Ragged:
    """B responses of 0 to T tokens; `rows(name)` gives each row's valid values as Python floats."""

    clean_BT: Tensor
    corrupted_BT: Tensor
    old_BT: Tensor
    reference_BT: Tensor
    entropy_BT: Tensor
    advantage_BT: Tensor
    advantage_B: Tensor
    correct_B: Tensor
    anchor_B: Tensor
    """Mean log-probability of an anchor; NaN in about a third of the rows."""
    anchor_BT: Tensor
    """Token log-probabilities of an anchor of another length, NaN past its end and without an anchor."""
    mask_BT: Tensor

    def valid(self, row: int) -> list[int]:
        return self.mask_BT[row].nonzero()[:, 0].tolist()

    @property
    def num_tokens(self) -> int:
        return int(self.mask_BT.sum())


@pytest.fixture(scope="session")
def ragged() -> Callable[..., Ragged]:
    return _ragged


def _ragged(seed: int, dtype: torch.dtype = torch.float64, *, holes: bool = False) -> Ragged:
    generator = torch.Generator().manual_seed(seed)
    rows = int(torch.randint(1, 7, (), generator=generator))
    width = int(torch.randint(1, 45, (), generator=generator))
    lengths = torch.randint(0, width + 1, (rows,), generator=generator)
    mask_BT = torch.arange(width) < lengths[:, None]
    if holes:
        mask_BT &= torch.rand(rows, width, generator=generator) < 0.7

    def normal(scale: float = 1.0) -> Tensor:
        values = scale * torch.randn(rows, width, generator=generator, dtype=torch.float64)
        return values.masked_fill(~mask_BT, torch.nan).to(dtype)

    clean_BT = -normal(1.5).abs()
    anchor_lengths = torch.randint(0, width + 1, (rows,), generator=generator)
    anchor_BT = -torch.rand(rows, width, generator=generator, dtype=torch.float64)
    anchor_BT[torch.arange(width) >= anchor_lengths[:, None]] = torch.nan
    anchor_B = -torch.rand(rows, generator=generator, dtype=torch.float64)
    anchor_B[torch.rand(rows, generator=generator) < 0.33] = torch.nan
    return Ragged(
        clean_BT=clean_BT,
        corrupted_BT=(clean_BT + normal(0.7)).clamp(max=0),
        old_BT=(clean_BT + normal(0.3)).clamp(max=0),
        reference_BT=(clean_BT + normal(0.3)).clamp(max=0),
        entropy_BT=normal().abs(),
        advantage_BT=normal(),
        advantage_B=torch.randn(rows, generator=generator, dtype=torch.float64).to(dtype),
        correct_B=torch.rand(rows, generator=generator) < 0.5,
        anchor_B=anchor_B.to(dtype),
        anchor_BT=anchor_BT.to(dtype),
        mask_BT=mask_BT,
    )
