"""What a person sees of a run: a live display on a terminal, a line a step elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self, TextIO, TypeVar

from pivot.runs.displays import Display, Lines, LiveDisplay, Silent
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
"""What is shown of a step's metrics: label -> (key, format). A metric that a step lacks is left out."""


class Progress:
    """Times the phases of a run and shows where it stands.

    Example:
        with Progress(total_steps=60) as progress:
            for step in range(1, 61):
                with progress.phase("rollout"):
                    ...
                progress.step_done(step, metrics)
    """

    def __init__(
        self, total_steps: int, *, first_step: int = 1, quiet: bool = False, stream: TextIO | None = None
    ):
        """`first_step` is where a resumed run goes on; time left is measured from there."""
        shown = stream or sys.stdout
        self._display: Display = Silent()
        if not quiet and shown.isatty():
            self._display = LiveDisplay(shown, total_steps, first_step - 1)
        elif not quiet:
            self._display = Lines(shown, total_steps)
        self.clock = PhaseClock(on_change=self._display.phase)
        self._total = total_steps
        self._before = first_step - 1
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
        """Time what happens inside and show that it is happening; the same as `clock.phase`."""
        return self.clock.phase(name)

    def begin_steps(self) -> None:
        """Start the clocks: what came before counts neither for the first step nor for the time left."""
        self.clock.restart()
        self._run.restart()

    def step_done(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Show a finished step and start the clock of the next one."""
        done = max(1, step - self._before)
        seconds_left = self._run.elapsed / done * max(0, self._total - step)
        self._display.step(step, summarise(metrics), seconds_left)
        self.clock.restart()

    def say(self, message: str) -> None:
        """A message of its own, above the live display."""
        self._display.say(message)

    def track(self, items: Iterable[Item], description: str, total: int | None = None) -> Iterator[Item]:
        """`items`, with a bar that moves as they are taken and goes away at the end, also an early one."""
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
    """Label -> text of what is worth showing, the times of the phases last."""
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
