"""What a person sees while cells run: which are at work, how many are done, and how long the rest will take."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from pivot.reproduce.plan import Cell

LINE_SECONDS = 60.0
"""Between lines where nobody watches a terminal."""


@dataclass(frozen=True)
class Standing:
    """How far a running cell is."""

    cell: Cell
    seconds: float
    share: float
    """Of its steps."""


@dataclass
class Forecast:
    """Counts cells and seconds; `durations` are those of cells that are done, also of earlier calls."""

    total: int
    done: int
    jobs: int
    durations: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})
    """Whether it is a single cell (base, overhead), which trains nothing -> seconds."""
    stream: TextIO = field(default_factory=lambda: sys.stdout)
    _last: float = -LINE_SECONDS

    def began(self, cell: Cell) -> None:
        self._say(f"      {cell.label}: started")

    def ended(self, cell: Cell, seconds: float) -> None:
        self.done += 1
        self.durations[cell.is_single].append(seconds)
        self._say(f"{self._count()} {cell.label}: done in {spell(seconds)}")

    def broke(self, cell: Cell, code: int, log: Path) -> None:
        self._say(f"      {cell.label}: failed (exit code {code}); see {log}")

    def show(self, standing: Sequence[Standing], waiting: Sequence[Cell]) -> None:
        """The state of things: every moment on a terminal, a line a minute elsewhere."""
        live, now = self.stream.isatty(), time.monotonic()
        if not live and now - self._last < LINE_SECONDS:
            return
        self._last = now
        at_work = ", ".join(f"{one.cell.label} {one.share:.0%}" for one in standing)
        left = self.seconds_left(standing, waiting)
        text = f"{self._count()} {at_work}; left: {'unknown yet' if left is None else spell(left)}"
        print(f"\r\x1b[2K{text}" if live else text, end="" if live else "\n", file=self.stream, flush=True)

    def seconds_left(self, standing: Sequence[Standing], waiting: Sequence[Cell]) -> float | None:
        """Work that is left over the number of processes; None while nothing is known of it."""
        expected = {single: self._expected(single, standing) for single in (True, False)}
        rest = 0.0
        for cell in waiting:
            seconds = expected[cell.is_single]
            if seconds is None:
                return None
            rest += seconds
        for one in standing:
            seconds = expected[one.cell.is_single]
            if seconds is None:
                return None
            rest += max(0.0, seconds - one.seconds) if not one.share else seconds * (1 - one.share)
        return rest / self.jobs

    def _expected(self, single: bool, standing: Sequence[Standing]) -> float | None:
        """Median of those that are done; else what those at work lead to expect; a single one at most as much."""
        if self.durations[single]:
            return statistics.median(self.durations[single])
        running = [one.seconds / one.share for one in standing if one.share > 0]
        trained = self.durations[False] or running
        return statistics.median(trained) if trained else None

    def _count(self) -> str:
        return f"[{self.done}/{self.total}]"

    def _say(self, text: str) -> None:
        clear = "\r\x1b[2K" if self.stream.isatty() else ""
        print(f"{clear}{text}", file=self.stream, flush=True)


def spell(seconds: float) -> str:
    """`3 h 05 min`, `12 min`, `40 s`."""
    whole = round(seconds)
    if whole < 90:
        return f"{whole} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
