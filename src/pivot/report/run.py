"""Reads the folder of a run, whether it is finished, running, truncated or incomplete."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from pivot.errors import UserError
from pivot.jsonl import decode_row, scan
from pivot.report.series import Series

FILES = {
    "config.json": "the resolved configuration",
    "run.json": "versions, command and status",
    "metrics.jsonl": "metrics of every step",
    "rollouts.jsonl": "sampled responses with token scores",
    "eval/scores.json": "evaluation scores",
}
"""File in a run's folder that the report reads -> its content."""
SWITCHED_OFF = {"rollouts.jsonl": "log.rollouts_per_step", "eval/scores.json": "eval.final_prompts"}
"""File -> the setting that is 0 where a run is not to write it."""


@dataclass
class RunData:
    """The content of a run's folder without its rollouts, which are streamed because they can be large."""

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    """One sentence per missing or damaged file."""

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
        """The first and the last step; None if they are the same."""
        ends = [float(self.metrics[i]["step"]) for i in (0, -1)] if self.metrics else [0.0, 0.0]
        return (ends[0], ends[1]) if ends[1] > ends[0] else None

    def setting(self, dotted: str) -> Any:
        """The config's value at `section.field`; None if it is absent or a section."""
        value: Any = self.config
        for part in dotted.split("."):
            if not isinstance(value, dict) or part not in value:
                return None
            value = value[part]
        return None if isinstance(value, dict) else value

    def series(self, key: str) -> Series:
        """The finite values of a metric, by step."""
        pairs = [(line["step"], line[key]) for line in self.metrics if is_number(line.get(key))]
        steps, values = zip(*pairs, strict=True) if pairs else ((), ())
        return Series(np.asarray(steps, dtype=float), np.asarray(values, dtype=float))


def is_number(value: Any) -> TypeGuard[float]:
    """A finite int or float; booleans are not numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def read_run(folder: Path | str) -> RunData:
    """The content of a folder; `gaps` names what is missing.

    Raises a UserError if the folder has none of the files of a run.
    """
    folder = Path(folder)
    missing = {name: content for name, content in FILES.items() if not (folder / name).is_file()}
    if len(missing) == len(FILES):
        raise UserError(
            f"{folder} is not a run's folder: it has none of {', '.join(FILES)}; give a folder that `pivot train` "
            "wrote."
        )
    run = RunData(folder)
    run.config = _read_object(run, "config.json")
    unwanted = {name for name, setting in SWITCHED_OFF.items() if run.setting(setting) == 0}
    run.gaps += [f"{name} is missing ({text})." for name, text in missing.items() if name not in unwanted]
    run.info = _read_object(run, "run.json")
    by_step = {row["step"]: row for _, row in read_rows(run, "metrics.jsonl") if is_number(row.get("step"))}
    run.metrics = [by_step[step] for step in sorted(by_step)]
    listed = _read_object(run, "eval/scores.json").get("evaluations", [])
    if not isinstance(listed, list):
        run.gaps.append("eval/scores.json has no list of evaluations.")
        listed = []
    run.evaluations = _in_order([e for e in listed if isinstance(e, dict) and is_number(e.get("accuracy"))])
    if len(run.evaluations) < len(listed):
        run.gaps.append(
            f"eval/scores.json has {len(listed) - len(run.evaluations)} entries without an accuracy."
        )
    return run


def read_rows(run: RunData, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(byte offset, row) of each readable line; unreadable lines are counted into the run's gaps."""
    unreadable, is_cut = 0, False
    for offset, raw, row in scan(run.folder / name):
        if row is not None:
            yield offset, row
        elif raw.endswith(b"\n"):
            unreadable += bool(raw.strip())
        else:
            is_cut = True
    if unreadable:
        run.gaps.append(f"{name} has {unreadable} unreadable line{'s' * (unreadable > 1)}, skipped here.")
    if is_cut:
        run.gaps.append(f"{name} ends in the middle of a line: the run was killed there, or is writing it.")


def read_row_at(run: RunData, name: str, offset: int) -> dict[str, Any]:
    """The row that starts at a byte offset from `read_rows`."""
    with (run.folder / name).open("rb") as file:
        file.seek(offset)
        return json.loads(file.readline())


def _in_order(evaluations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By benchmark, images shown before blank ones, otherwise as written."""
    names = list(dict.fromkeys(str(e.get("name")) for e in evaluations))
    return sorted(evaluations, key=lambda e: (names.index(str(e.get("name"))), bool(e.get("blank"))))


def _read_object(run: RunData, name: str) -> dict[str, Any]:
    path = run.folder / name
    if not path.is_file():
        return {}
    value = decode_row(path.read_bytes())
    if value is None:
        run.gaps.append(f"{name} is not a readable JSON object.")
    return value or {}
