"""Three ways to show progress: live on a terminal, as plain lines, not at all."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.text import Text

SECONDS_BETWEEN_LINES = 10.0


class Display(Protocol):
    """Where progress goes. A task is something long beside the steps; it is over when done equals total."""

    def open(self) -> None: ...
    def close(self) -> None: ...
    def phase(self, name: str | None) -> None: ...
    def step(self, step: int, summary: Mapping[str, str], seconds_left: float) -> None: ...
    def say(self, message: str) -> None: ...
    def task(self, description: str, done: int, total: int | None) -> None: ...


class Silent:
    """`--quiet`: nothing."""

    def open(self) -> None: ...
    def close(self) -> None: ...
    def phase(self, name: str | None) -> None: ...
    def step(self, step: int, summary: Mapping[str, str], seconds_left: float) -> None: ...
    def say(self, message: str) -> None: ...
    def task(self, description: str, done: int, total: int | None) -> None: ...


class Lines:
    """One flushed line a step; a task says when it starts, when it is over, and every few seconds in between."""

    def __init__(self, stream: TextIO, total_steps: int):
        self._stream = stream
        self._total = total_steps
        self._last = 0.0

    def open(self) -> None: ...
    def close(self) -> None: ...
    def phase(self, name: str | None) -> None: ...

    def step(self, step: int, summary: Mapping[str, str], seconds_left: float) -> None:
        parts = [f"step {step}/{self._total}", *(f"{label} {text}" for label, text in summary.items())]
        self.say("  ".join([*parts, f"left {duration(seconds_left)}"]))

    def say(self, message: str) -> None:
        print(message, file=self._stream, flush=True)

    def task(self, description: str, done: int, total: int | None) -> None:
        if done not in (0, total) and time.monotonic() - self._last < SECONDS_BETWEEN_LINES:
            return
        self._last = time.monotonic()
        self.say(f"{description}: {done}" + ("" if total is None else f"/{total}"))


class LiveDisplay:
    """A bar over the steps with the phase now running, the last step's numbers, and a bar for a task."""

    def __init__(self, stream: TextIO, total_steps: int, done_steps: int = 0):
        console = Console(file=stream)
        self._bars = Bars(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
        )
        self._steps = self._bars.add_task("step", total=total_steps, completed=done_steps, note="")
        self._tasks: dict[str, TaskID] = {}
        self._left = ""
        self._live = Live(self._picture({}), console=console, refresh_per_second=4)

    def open(self) -> None:
        self._live.start()

    def close(self) -> None:
        self._live.stop()

    def phase(self, name: str | None) -> None:
        self._bars.update(self._steps, note="  ".join(part for part in (self._left, name) if part))

    def step(self, step: int, summary: Mapping[str, str], seconds_left: float) -> None:
        self._left = f"left {duration(seconds_left)}"
        self._bars.update(self._steps, completed=step, note=self._left)
        self._live.update(self._picture(summary))

    def say(self, message: str) -> None:
        self._live.console.print(message, markup=False, highlight=False)

    def task(self, description: str, done: int, total: int | None) -> None:
        if description not in self._tasks:
            self._tasks[description] = self._bars.add_task(description, total=total, note="")
        self._bars.update(self._tasks[description], completed=done, total=total)
        if done == total:
            self._bars.remove_task(self._tasks.pop(description))

    def _picture(self, summary: Mapping[str, str]) -> Group:
        numbers = "   ".join(f"{label} {text}" for label, text in summary.items())
        return Group(self._bars, Text(numbers, style="dim"))


def duration(seconds: float) -> str:
    """`45s`, `3m10s`, `2h05m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
