"""The rows that a run appends: what is recorded of them, what a damaged file lacks, and how it is repaired.

A checkpoint records (step, crc32) of every row of `metrics.jsonl`, `rollouts.jsonl` and `nonfinite.jsonl`. A run that
resumes from it must find each of these rows once and in order.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO

from pivot.durable import append_bytes, replacing
from pivot.jsonl import scan

METRICS = "metrics.jsonl"
FILES = (METRICS, "rollouts.jsonl", "nonfinite.jsonl")
SHOWN = 5
"""Ranges of steps that a message names."""


@dataclass(frozen=True)
class Row:
    """A row's step and checksum, and where it is in its file."""

    step: int
    crc: int
    offset: int
    size: int

    @property
    def record(self) -> tuple[int, int]:
        return self.step, self.crc


@dataclass
class Found:
    """What a file holds, seen from a checkpoint's step. The rows themselves can be large and stay on the disk."""

    path: Path
    rows: list[Row] = field(default_factory=list)
    """Up to the step, in the file's order."""
    rest: list[Row] = field(default_factory=list)
    """Later rows and unreadable lines. An unfinished last line is in neither."""
    unreadable: list[int] = field(default_factory=list)
    """Numbers of the unreadable lines before the last of `rows`."""
    ends_torn: bool = False
    """Without a newline."""


def record(step: int, raw: bytes) -> list[int]:
    """What a checkpoint keeps of a row."""
    return [step, zlib.crc32(raw)]


def read_found(path: Path, step: int) -> Found:
    """Read a file; a missing one has no rows."""
    found = Found(path)
    pending: list[int] = []
    for number, (offset, raw, content) in enumerate(scan(path), start=1):
        found.ends_torn = not raw.endswith(b"\n")
        at = None if content is None else content.get("step")
        whole = raw if raw.endswith(b"\n") else raw + b"\n"
        row = Row(at if isinstance(at, int) else -1, zlib.crc32(whole), offset, len(raw))
        if row.step < 0:
            if raw.endswith(b"\n"):
                found.rest.append(row)
                pending.append(number)
        elif row.step > step:
            found.rest.append(row)
        else:
            found.rows.append(row)
            found.unreadable += pending
            pending.clear()
    return found


def describe_loss(found: Found, recorded: Sequence[Sequence[int]] | None, step: int) -> str | None:
    """What a file lacks or has too much of, in a few words; None if it is as recorded.

    Args:
        recorded: (step, crc32) of each row; None: unknown, and of metrics one row per step is expected.
    """
    if recorded is not None:
        expected = [(row[0], row[1]) for row in recorded]
        actual = [row.record for row in found.rows]
    elif found.path.name == METRICS:
        expected = [(number, 0) for number in range(1, step + 1)]
        actual = [(row.step, 0) for row in found.rows]
    else:
        expected = actual = []
    parts = _compare(expected, actual)
    if found.unreadable:
        parts.append(f"{_numbers('line', found.unreadable)} unreadable")
    return ", ".join(parts) or None


def _compare(expected: list[tuple[int, int]], actual: list[tuple[int, int]]) -> list[str]:
    missing, extra = Counter(expected) - Counter(actual), Counter(actual) - Counter(expected)
    lost, added = ({step for step, _ in rows} for rows in (missing, extra))
    parts = [
        f"{_numbers('step', sorted(steps))} {word}"
        for steps, word in ((lost - added, "missing"), (lost & added, "changed"), (added - lost, "repeated"))
        if steps
    ]
    return parts or (["rows out of order"] if expected != actual else [])


def _numbers(noun: str, numbers: Iterable[int]) -> str:
    """`steps 1-3, 7`; at most SHOWN ranges."""
    numbers = list(numbers)
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    told = [str(a) if a == b else f"{a}-{b}" for a, b in ranges[:SHOWN]]
    more = f" and {len(ranges) - SHOWN} more ranges" if len(ranges) > SHOWN else ""
    return f"{noun}{'s' * (len(numbers) > 1)} {', '.join(told)}{more}"


def settle(found: Found, recorded: Sequence[Sequence[int]] | None, *, damaged: bool) -> list[list[int]]:
    """Leave only the rows up to the step in the file and move all others to `*.dropped.jsonl`; returns what is left.

    Files are replaced, never truncated in place, and only if something changes. Of a damaged file each step keeps the
    rows that were recorded, or all different ones if none of those is left.
    """
    kept, dropped = _repaired(found.rows, recorded) if damaged else (found.rows, [])
    dropped = [*dropped, *found.rest]
    if dropped or found.ends_torn or kept != found.rows:
        # First the copy, then the replacement: a crash between them repeats rows there and loses none.
        with found.path.open("rb") as source:
            append_bytes(
                found.path.with_name(f"{found.path.stem}.dropped.jsonl"), b"".join(_lines(source, dropped))
            )
            with replacing(found.path) as temporary, temporary.open("wb") as file:
                file.writelines(_lines(source, kept))
    return [list(row.record) for row in kept]


def _lines(source: BinaryIO, rows: Iterable[Row]) -> Iterator[bytes]:
    for row in rows:
        source.seek(row.offset)
        raw = source.read(row.size)
        yield raw if raw.endswith(b"\n") else raw + b"\n"


def _repaired(rows: list[Row], recorded: Sequence[Sequence[int]] | None) -> tuple[list[Row], list[Row]]:
    """(rows in order, each as often as it was recorded; the rest)."""
    due = Counter(tuple(entry) for entry in recorded or ())
    kept: list[Row] = []
    for _, group in groupby(sorted(rows, key=attrgetter("step")), key=attrgetter("step")):
        of_step = list(group)
        right: list[Row] = []
        for row in of_step:
            if due[row.record] > 0:
                due[row.record] -= 1
                right.append(row)
        kept += right or {row.record: row for row in of_step}.values()
    chosen = set(kept)
    return kept, [row for row in rows if row not in chosen]
