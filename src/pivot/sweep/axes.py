"""What a plan varies: axes with their values, and selections among them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pivot.errors import UserError, nearest

Selection = Mapping[str, Sequence[str]]
"""Axis -> labels of its values; an axis that is not there is not restricted."""


@dataclass(frozen=True)
class Axis:
    """One thing that differs between runs of an arm.

    Example:
        Axis(values={"lr=1e-6": ("train.lr=1e-6",), "lr=2e-6": ("train.lr=2e-6",)})
    """

    values: Mapping[str, tuple[str, ...]]
    """Label -> settings."""
    is_named: bool = False
    """Its values have names of their own and may be several settings each."""


def read_axes(given: Any, where: str) -> dict[str, Axis]:
    """`setting: [value, ...]`, or `name: {label: [section.field=value, ...], ...}`."""
    if not isinstance(given, Mapping) or not all(_is_axis(values) for values in given.values()):
        raise UserError(
            f"{where} is {given!r}, but must give values, such as {{train.lr: [1e-6, 2e-6]}}, or names with their "
            "settings, such as {data: {easy: [data.train=easy.jsonl], hard: [data.train=hard.jsonl]}}."
        )
    return {str(name): _axis(str(name), values) for name, values in given.items()}


def _is_axis(values: Any) -> bool:
    if isinstance(values, Mapping):
        return bool(values) and all(_is_list(settings) for settings in values.values())
    return _is_list(values) and len(values) > 0


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _axis(name: str, values: Any) -> Axis:
    if isinstance(values, Mapping):
        named = {str(label): tuple(map(str, settings)) for label, settings in values.items()}
        return Axis(named, is_named=True)
    short, texts = name.rpartition(".")[2], [setting_text(value) for value in values]
    return Axis({f"{short}={text}": (f"{name}={text}",) for text in texts})


def setting_text(value: object) -> str:
    """A value as `--set` takes it."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def read_selection(given: Any, axes: Mapping[str, Axis], where: str) -> dict[str, tuple[str, ...]]:
    """`{axis: [label, ...]}`, with names that exist."""
    if not isinstance(given, Mapping) or not all(_is_list(labels) for labels in given.values()):
        raise UserError(f"{where} is {given!r}, but must name values of `vary`, such as {{data: [easy]}}.")
    for name, labels in given.items():
        if name not in axes:
            raise UserError(
                f"{where} names {name!r}, which `vary` does not have; {nearest(str(name), axes)}."
            )
        for label in map(str, labels):
            if label not in axes[name].values:
                raise UserError(f"{where}.{name} names {label!r}; {nearest(label, axes[name].values)}.")
    return {str(name): tuple(map(str, labels)) for name, labels in given.items()}


def is_selected(values: Mapping[str, str], selection: Selection) -> bool:
    """Whether an arm with these values (axis -> label) is meant."""
    return all(values.get(axis) in labels for axis, labels in selection.items())


def combinations(axes: Mapping[str, Axis], selection: Selection) -> Iterator[dict[str, str]]:
    """Axis -> label, for every combination of the selected values; the last axis changes fastest."""
    for labels in itertools.product(*(axis.values for axis in axes.values())):
        values = dict(zip(axes, labels, strict=True))
        if is_selected(values, selection):
            yield values
