"""JSON lines: how the rows of a run are written and read. Standard library only.

JSON has no NaN and no infinity. Such a number is written as null and its key is listed in the row's `nonfinite`, which
distinguishes "not measured" from "not a number".
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pivot.errors import UserError


@dataclass(frozen=True)
class Line:
    """One line of a file: its bytes including the newline, and the row."""

    raw: bytes
    row: dict[str, Any]


def encode_row(row: Mapping[str, Any]) -> bytes:
    """`row` as one line of strict JSON.

    Example:
        encode_row({"step": 3, "loss/total": nan})
        b'{"step": 3, "loss/total": null, "nonfinite": ["loss/total"]}\\n'
    """
    finite = {key: _finite(value) for key, value in row.items()}
    nonfinite = [key for key, value in row.items() if not _is_finite(value)]
    if nonfinite:
        finite["nonfinite"] = nonfinite
    return (json.dumps(finite, ensure_ascii=False, allow_nan=False) + "\n").encode(
        "utf-8", "backslashreplace"
    )


def read_lines(path: Path) -> Iterator[Line]:
    """The rows of a JSON lines file in order; a missing file has none.

    An unfinished last line, left by a crash, is ignored. A broken line anywhere else raises UserError.
    """
    broken: int | None = None
    for number, (_, raw, row) in enumerate(scan(path), start=1):
        if broken is not None:
            raise UserError(
                f"{path} is damaged: line {broken} is not a JSON object; restore it or remove the line."
            )
        if row is None:
            broken = number
        else:
            yield Line(raw if raw.endswith(b"\n") else raw + b"\n", row)


def scan(path: Path) -> Iterator[tuple[int, bytes, dict[str, Any] | None]]:
    """(byte offset, raw line, row) of every line; the row is None if the line is not a JSON object."""
    if not path.exists():
        return
    offset = 0
    if not path.is_file():
        raise UserError(f"{path} is not a file; move it away.")
    with path.open("rb") as file:
        for raw in file:
            yield offset, raw, decode_row(raw)
            offset += len(raw)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """All rows of a JSON lines file such as `metrics.jsonl`; an unfinished last line is ignored."""
    return [line.row for line in read_lines(path)]


def decode_row(raw: bytes) -> dict[str, Any] | None:
    """The JSON object in some bytes; None if they hold anything else."""
    try:
        row = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Mapping):
        return all(_is_finite(part) for part in value.values())
    if isinstance(value, list | tuple):
        return all(_is_finite(part) for part in value)
    return True


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value
