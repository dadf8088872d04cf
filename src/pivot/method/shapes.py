"""Argument checks: every public function names the argument, what was given and what was expected."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Shape = Sequence[int | str]
"""Sizes that must match; a letter stands for any size."""


def check_floating(name: str, value: Tensor, shape: Shape) -> None:
    """ValueError unless `value` is a floating-point tensor of `shape`."""
    _check(name, value, shape, "floating-point", isinstance(value, Tensor) and value.is_floating_point())


def check_mask(name: str, value: Tensor, shape: Shape) -> None:
    """ValueError unless `value` is a bool or floating-point tensor of `shape`."""
    is_mask = isinstance(value, Tensor) and (value.dtype == torch.bool or value.is_floating_point())
    _check(name, value, shape, "bool or floating-point", is_mask)


def check_index(name: str, value: Tensor, shape: Shape) -> None:
    """ValueError unless `value` is an int32 or int64 tensor of `shape`."""
    is_index = isinstance(value, Tensor) and value.dtype in (torch.int32, torch.int64)
    _check(name, value, shape, "int32 or int64", is_index)


def check_range(name: str, value: float, low: float, high: float) -> None:
    """ValueError unless low <= value <= high."""
    if not low <= value <= high:
        raise ValueError(f"{name} must lie in [{low:g}, {high:g}], got {value!r}")


def _check(name: str, value: Tensor, shape: Shape, kind: str, is_kind: bool) -> None:
    fits = isinstance(value, Tensor) and len(value.shape) == len(shape)
    if fits:
        fits = all(
            isinstance(want, str) or want == size for size, want in zip(value.shape, shape, strict=True)
        )
    if not (is_kind and fits):
        given = _describe(value)
        raise ValueError(f"{name} must be a {kind} tensor of shape {_brackets(shape)}, got {given}")


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} of shape {_brackets(value.shape)}"
    return type(value).__name__


def _brackets(shape: Shape) -> str:
    return "[" + ", ".join(str(size) for size in shape) + "]"
