"""Checks of a model's weights: all there, none too many, in their shapes, and finite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from pivot.errors import UserError

SHOWN = 3
"""Weights that a message names."""
FLOATS = ("F64", "F32", "F16", "BF16")
"""As safetensors calls them."""


def check_weights(name: str, report: Mapping[str, Any], weights: Iterable[tuple[str, Tensor]]) -> None:
    """Raise a UserError that names the weights of a loaded model which are not what its files should hold.

    Args:
        name: the model, as the user wrote it.
        report: the loading info of transformers; it knows tied heads, which are rightly absent.
        weights: by name.
    """
    wrong = [
        f"{key} is {list(found)} instead of {list(right)}" for key, found, right in report["mismatched_keys"]
    ]
    problems = {
        "missing from its files": sorted(report["missing_keys"]),
        "unknown to its architecture": sorted(report["unexpected_keys"]),
        "of another shape": sorted(wrong),
        "unreadable": list(report["error_msgs"]),
    }
    if not any(problems.values()):
        problems["not finite"] = find_nonfinite(weights)
    _refuse(f"the model {name!r}", problems, "restore its files, or load it again from where it comes from")


def check_saved(path: Path, saved: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """The same for tensors of a checkpoint, such as low-rank adapters; of `expected` only the shapes matter."""
    both = [name for name in saved if name in expected]
    wrong = [name for name in both if saved[name].shape != expected[name].shape]
    problems = {
        "missing": sorted(set(expected) - set(saved)),
        "unknown to the model": sorted(set(saved) - set(expected)),
        "of another shape": [
            f"{name} is {list(saved[name].shape)} instead of {list(expected[name].shape)}" for name in wrong
        ],
        "not finite": find_nonfinite(saved.items()),
    }
    _refuse(str(path), problems, "resume from an earlier checkpoint")


def stored_weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """The weights in a model's files, one at a time."""
    for path in sorted(folder.glob("model*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - no mapping
                yield name, file.get_tensor(name)


def check_stored_types(name: str, folder: Path) -> None:
    """Refuse weights stored as integers or in 8 bits without their scales: read as floats they would be wrong."""
    narrow: dict[str, str] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        with safe_open(path, framework="pt") as file:
            types = {key: str(file.get_slice(key).get_dtype()) for key in file.keys()}  # noqa: SIM118 - no mapping
        narrow |= {k: t for k, t in types.items() if k.endswith(("weight", "bias")) and t not in FLOATS}
    if narrow:
        key, kind = min(narrow.items())
        raise UserError(
            f"the model {name!r} stores {_told(sorted(narrow), 'in a type that cannot be trained')}, {key} as {kind}; "
            "give the model as published in bfloat16, float16 or float32 (model.quantize=nf4 saves memory)."
        )


def find_nonfinite(weights: Iterable[tuple[str, Tensor]]) -> list[str]:
    """Names of the tensors that hold a NaN or an infinity: one pass, without copies in another type."""
    return [name for name, weight in weights if not _is_finite(weight)]


def _is_finite(weight: Tensor) -> bool:
    if not weight.is_floating_point() or weight.numel() == 0:
        return True
    # A NaN is the smallest and the largest of its tensor; `isfinite` would make a tensor of its size.
    return bool(torch.isfinite(torch.stack(torch.aminmax(weight.detach()))).all())


def _refuse(what: str, problems: Mapping[str, list[str]], advice: str) -> None:
    parts = [_told(names, problem) for problem, names in problems.items() if names]
    if parts:
        raise UserError(f"{what} is damaged: {'; '.join(parts)}; {advice}.")


def _told(names: list[str], problem: str) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    count = "1 weight" if len(names) == 1 else f"{len(names)} weights"
    return f"{count} {problem} ({', '.join(names[:SHOWN])}{more})"
