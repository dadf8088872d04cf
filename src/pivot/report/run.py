"""Read a run's folder as it is: finished, still running, cut off in the middle of a line, or in pieces."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from pivot.errors import UserError

PIECES = {
    "config.json": "the resolved configuration",
    "run.json": "versions, command and status",
    "metrics.jsonl": "one line a step",
    "rollouts.jsonl": "sampled groups with token scores",
    "eval/scores.json": "evaluations",
}
"""What a report reads of a run's folder, and what each piece holds."""


@dataclass(frozen=True)
class Series:
    """One metric over the steps that logged it."""

    steps: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def last(self) -> float | None:
        return float(self.values[-1]) if len(self) else None


@dataclass
class Run:
    """All of a run's folder but its rollouts, which are streamed because they can be large."""

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    """One sentence for each piece that is missing or damaged."""

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def method(self) -> str:
        return str(self.setting("method.name") or self.setting("method") or "unknown method")

    @property
    def status(self) -> str:
        return str(self.info.get("status") or "unknown")

    @property
    def num_steps(self) -> int:
        return int(self.metrics[-1]["step"]) if self.metrics else 0

    @property
    def span(self) -> tuple[float, float] | None:
        """The first and the last step; None where there are not two."""
        ends = [float(self.metrics[i]["step"]) for i in (0, -1)] if self.metrics else [0.0, 0.0]
        return (ends[0], ends[1]) if ends[1] > ends[0] else None

    def setting(self, dotted: str) -> Any:
        """The config's value at `section.field`; None where it is absent or is itself a section."""
        value: Any = self.config
        for part in dotted.split("."):
            if not isinstance(value, dict) or part not in value:
                return None
            value = value[part]
        return None if isinstance(value, dict) else value

    def series(self, key: str) -> Series:
        """The finite values of a metric, in order of steps."""
        pairs = [(line["step"], line[key]) for line in self.metrics if is_number(line.get(key))]
        steps, values = zip(*pairs, strict=True) if pairs else ((), ())
        return Series(np.asarray(steps, dtype=float), np.asarray(values, dtype=float))


def is_number(value: Any) -> TypeGuard[float]:
    """A finite int or float; booleans are not numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def read_run(folder: Path | str) -> Run:
    """What the folder holds; what it lacks is named in `gaps`.

    A folder with none of the pieces is a mistake: UserError.
    """
    folder = Path(folder)
    if not any((folder / piece).is_file() for piece in PIECES):
        wanted = ", ".join(PIECES)
        raise UserError(
            f"{folder} is not a run's folder: it holds none of {wanted}; give what `pivot train` wrote"
        )
    run = Run(
        folder, gaps=[f"{p} is missing: {what}." for p, what in PIECES.items() if not (folder / p).is_file()]
    )
    run.config = _read_object(run, "config.json")
    run.info = _read_object(run, "run.json")
    by_step = {
        line["step"]: line for _, line in read_lines(run, "metrics.jsonl") if is_number(line.get("step"))
    }
    run.metrics = [by_step[step] for step in sorted(by_step)]
    listed = _read_object(run, "eval/scores.json").get("evaluations", [])
    run.evaluations = _in_order([e for e in listed if isinstance(e, dict) and is_number(e.get("accuracy"))])
    if len(run.evaluations) < len(listed):
        run.gaps.append(
            f"eval/scores.json has {len(listed) - len(run.evaluations)} entries without an accuracy."
        )
    return run


def read_lines(run: Run, piece: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(byte offset, object) of each readable line; what cannot be read is counted into the run's gaps."""
    path = run.folder / piece
    if not path.is_file():
        return
    unreadable, offset, line = 0, 0, b"\n"
    with path.open("rb") as file:
        for line in file:
            value = _parse(line)
            if isinstance(value, dict):
                yield offset, value
            elif line.endswith(b"\n") and line.strip():
                unreadable += 1
            offset += len(line)
    if unreadable:
        run.gaps.append(f"{piece} has {unreadable} unreadable line{'s' * (unreadable > 1)}, left out here.")
    if not line.endswith(b"\n") and not isinstance(_parse(line), dict):
        run.gaps.append(f"{piece} ends in the middle of a line: the run was cut off there, or is writing it.")


def read_line_at(run: Run, piece: str, offset: int) -> dict[str, Any]:
    """The object of the line that starts at a byte offset of `read_lines`."""
    with (run.folder / piece).open("rb") as file:
        file.seek(offset)
        return json.loads(file.readline())


def _in_order(evaluations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Benchmark by benchmark, with images before blank ones, else as they were written."""
    names = list(dict.fromkeys(str(e.get("name")) for e in evaluations))
    return sorted(evaluations, key=lambda e: (names.index(str(e.get("name"))), bool(e.get("blank"))))


def _parse(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _read_object(run: Run, piece: str) -> dict[str, Any]:
    path = run.folder / piece
    if not path.is_file():
        return {}
    value = _parse(path.read_bytes())
    if not isinstance(value, dict):
        run.gaps.append(f"{piece} is not readable as a JSON object.")
        return {}
    return value
