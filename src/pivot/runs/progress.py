"""What a user sees of a run: a live display on a terminal, one line per step elsewhere, nothing with `--quiet`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self, TextIO, TypeVar

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.text import Text

from pivot.console import Console
from pivot.terminal import printable
from pivot.training.clock import PhaseClock

Item = TypeVar("Item")

SHOWN = {
    "reward": ("reward/mean", "{:.3f}"),
    "accuracy": ("reward/accuracy", "{:.3f}"),
    "held out": ("eval/accuracy", "{:.3f}"),
    "buffer": ("buffer/size", "{:.0f}"),
    "length": ("rollout/length_mean", "{:.0f}"),
    "tokens/s": ("time/tokens_per_second", "{:.0f}"),
}
"""What is shown of a step's metrics: label -> (key, format). Metrics that a step lacks are left out."""
SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Times the phases of a run and shows its progress.

    Example:
        with Progress(total_steps=60) as progress:
            for step in range(1, 61):
                with progress.phase("rollout"):
                    ...
                progress.step_done(step, metrics)
    """

    def __init__(
        self,
        total_steps: int,
        *,
        first_step: int = 1,
        max_responses: int | None = None,
        quiet: bool = False,
        stream: TextIO | None = None,
    ):
        """The time left is estimated from `first_step` on, the first of this process; a run with a budget of
        responses may end before its last step."""
        shown = stream or sys.stdout
        self._display = Display()
        if not quiet and shown.isatty():
            self._display = LiveDisplay(shown, total_steps, first_step - 1)
        elif not quiet:
            self._display = Lines(shown, total_steps)
        self.clock = PhaseClock(on_change=self._display.phase)
        self._total = total_steps
        self._before = first_step - 1
        self._max_responses = max_responses
        self._run = PhaseClock()

    def __enter__(self) -> Self:
        self._display.open()
        self.clock.restart()
        self._run.restart()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._display.close()

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Time the block and show its name; the same as `clock.phase`."""
        return self.clock.phase(name)

    def begin_steps(self) -> None:
        """Restart the clocks: loading and evaluation count neither for the first step nor for the time left."""
        self.clock.restart()
        self._run.restart()

    def step_done(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Show a finished step and start the clock of the next one."""
        done = max(1, step - self._before)
        shown, steps_left = summarise(metrics), max(0.0, self._total - step)
        sampled = metrics.get("rollout/total_responses", 0)
        if self._max_responses is not None and sampled:
            shown = {"responses": f"{sampled}/{self._max_responses}", **shown}
            steps_left = min(steps_left, step * max(0.0, self._max_responses / sampled - 1))
        self._display.step(step, shown, self._run.elapsed / done * steps_left)
        self.clock.restart()

    def expect(self, total_steps: int) -> None:
        """The number of steps, where it is known only after the data is read."""
        self._total = total_steps
        self._display.expect(total_steps)

    def say(self, message: str) -> None:
        """Print a message above the live display."""
        self._display.say(message)

    def track(self, items: Iterable[Item], description: str, total: int | None = None) -> Iterator[Item]:
        """`items`, with a bar that advances as they are taken and disappears at the end."""
        if total is None and isinstance(items, Sized):
            total = len(items)
        done = 0
        self._display.task(description, done, total)
        try:
            for item in items:
                yield item
                done += 1
                self._display.task(description, done, total)
        finally:
            if done != total:
                self._display.task(description, done, done)


def summarise(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Label -> text of the shown metrics, the phases' seconds last."""
    summary = {
        label: form.format(metrics[key])
        for label, (key, form) in SHOWN.items()
        if metrics.get(key) is not None
    }
    seconds = {
        key.removeprefix("time/"): value for key, value in metrics.items() if _is_phase(key) and value >= 0.05
    }
    if seconds:
        summary["seconds"] = " ".join(f"{name} {value:.1f}" for name, value in seconds.items())
    return summary


def _is_phase(key: str) -> bool:
    return key.startswith("time/") and not key.startswith("time/share_") and key != "time/tokens_per_second"


class Display:
    """Where progress is shown; this one shows nothing (`--quiet`).

    A task is long work outside the steps; it is over when `done` equals `total`.
    """

    def open(self) -> None: ...
    def close(self) -> None: ...
    def phase(self, name: str | None) -> None: ...
    def step(self, step: int, summary: Mapping[str, str], seconds_left: float) -> None: ...
    def expect(self, total_steps: int) -> None: ...
    def say(self, message: str) -> None: ...
    def task(self, description: str, done: int, total: int | None) -> None: ...


class Lines(Display):
    """One flushed line per step; a task prints a line at its start and end, and every few seconds in between."""

    def __init__(self, stream: TextIO, total_steps: int):
        self._stream = stream
        self._total = total_steps
        self._last = 0.0

    def step(self, step: int, summary: Mapping[str, str], seconds_left: float) -> None:
        parts = [f"step {step}/{self._total}", *(f"{label} {text}" for label, text in summary.items())]
        self.say("  ".join([*parts, f"left {duration(seconds_left)}"]))

    def expect(self, total_steps: int) -> None:
        self._total = total_steps

    def say(self, message: str) -> None:
        print(printable(message), file=self._stream, flush=True)

    def task(self, description: str, done: int, total: int | None) -> None:
        if done not in (0, total) and time.monotonic() - self._last < SECONDS_BETWEEN_LINES:
            return
        self._last = time.monotonic()
        self.say(f"{description}: {done}" + ("" if total is None else f"/{total}"))


class LiveDisplay(Display):
    """A bar for the steps with the current phase, the last step's numbers, and a bar per task."""

    def __init__(self, stream: TextIO, total_steps: int, done_steps: int = 0):
        console = Console(file=stream)
        self._bars = Bars(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", markup=False),
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

    def expect(self, total_steps: int) -> None:
        self._bars.update(self._steps, total=total_steps)

    def say(self, message: str) -> None:
        self._live.console.print(message)

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
