"""Seconds per phase of a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class PhaseClock:
    """Seconds spent in named phases since the last `restart`.

    Phases may nest: time counts for the innermost one, so that the phases of a step never add up to more than the
    step.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.perf_counter,
        on_change: Callable[[str | None], None] = lambda phase: None,
        processor: Callable[[], float] = time.process_time,
    ):
        """`on_change` is called with the innermost phase whenever it changes."""
        self._now, self._processor = now, processor
        self._on_change = on_change
        self._running: list[str] = []
        self._since = self._started = now()
        self._processor_started = processor()
        self.phases: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the block's time for `name`; entering a phase again adds to it."""
        self._settle()
        self._running.append(name)
        self._on_change(name)
        try:
            yield
        finally:
            self._settle()
            self._running.pop()
            self._on_change(self.running)

    @property
    def running(self) -> str | None:
        """The innermost phase."""
        return self._running[-1] if self._running else None

    @property
    def elapsed(self) -> float:
        """Seconds since the last restart, in or out of phases."""
        return self._now() - self._started

    def restart(self) -> None:
        """Reset all times; running phases count from now on."""
        self._since = self._started = self._now()
        self._processor_started = self._processor()
        self.phases = {}

    def metrics(self) -> dict[str, float]:
        """`time/step`, `time/PHASE` and `time/other` by the wall clock, `time/share_PHASE`, and `time/processor`."""
        self._settle()
        step, processor = self.elapsed, self._processor() - self._processor_started
        named = {**self.phases, "other": max(0.0, step - sum(self.phases.values()))}
        shares = {f"time/share_{name}": seconds / step if step else 0.0 for name, seconds in named.items()}
        times = {f"time/{name}": seconds for name, seconds in named.items()}
        return {"time/step": step, **times, **shares, "time/processor": processor}

    def _settle(self) -> None:
        """Add the time since the last change to the running phase."""
        now = self._now()
        if self._running:
            name = self._running[-1]
            self.phases[name] = self.phases.get(name, 0.0) + now - self._since
        self._since = now
