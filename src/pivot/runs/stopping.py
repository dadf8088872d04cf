"""How a run is stopped: Ctrl-C, or a scheduler that needs the machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Protocol, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOPPED = 3
"""Exit code of a run that a signal stopped and that can be resumed."""
QUICK_SECONDS = 30.0
"""A step that is expected to end this soon after a signal is finished; schedulers often kill after 30 seconds."""
SLOWEST_SECONDS = 120.0
"""That a step has to finish at least, where nothing else is set."""
LAST_SECONDS = 10.0
"""For closing everything once a step is abandoned; then the process exits."""


class Stopped(BaseException):
    """Nothing is left to finish, or no time to finish it."""


class StopRequest(Protocol):
    """Whether and why a run is to stop after its step; true once that was requested."""

    stepping: bool
    """Set while a step is worth finishing."""

    @property
    def reason(self) -> str: ...
    def __bool__(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Stopping:
    """SIGINT, SIGTERM and SIGHUP end a run after its step, with a checkpoint; a second SIGINT ends it at once.

    While `stepping` is false (a model is being loaded or evaluated) the first signal ends it at once too. A step that
    would take too long and has changed no weight yet is given up at once, so that the step before it can be saved.
    Any other step that takes longer than `patience` seconds after the signal is abandoned.
    """

    def __init__(
        self,
        patience: float | None = None,
        seconds_left: Callable[[], float | None] = lambda: None,
        step_seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Without a given patience it follows the measured times.

        Args:
            seconds_left: expected until the step ends; None if it can no longer be given up without loss.
            step_seconds: of a whole step, as measured.
        """
        self._patience, self._seconds_left, self._step_seconds = patience, seconds_left, step_seconds
        self.signal: signal.Signals | None = None
        self.stepping = False
        self.abandoned = False
        self._before: dict[signal.Signals, Any] = {}

    def __bool__(self) -> bool:
        """Whether a signal has arrived."""
        return self.signal is not None

    @property
    def reason(self) -> str:
        """For run.json, e.g. `SIGTERM` or `SIGTERM, step abandoned after 120 s`."""
        name = self.signal.name if self.signal else "stopped"
        return f"{name}, step abandoned after {self.patience:g} s" if self.abandoned else name

    @property
    def patience(self) -> float:
        """Seconds that a step has to finish and be saved."""
        if self._patience is not None:
            return self._patience
        return max(SLOWEST_SECONDS, 2 * self._step_seconds())

    def __enter__(self) -> Self:
        try:
            # Signals that are ignored, e.g. under nohup, stay ignored.
            heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._stop) for number in heard}
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._abandon)
        except ValueError:  # not the main thread, which alone may set handlers
            self._before = {}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, _: FrameType | None) -> None:
        if self and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self:
            return
        self.signal = signal.Signals(number)
        if not self.stepping:
            raise Stopped
        left = self._seconds_left()
        if left is not None and left > (QUICK_SECONDS if self._patience is None else self._patience):
            signal.setitimer(signal.ITIMER_REAL, max(SLOWEST_SECONDS, self.patience))  # for saving
            _say(f"{self.signal.name}: this step needs {left:.0f} s more; saving the one before it")
            raise Stopped
        signal.setitimer(signal.ITIMER_REAL, self.patience)
        _say(f"{self.signal.name}: finishing this step, then saving (Ctrl-C to quit at once)")

    def _abandon(self, _: int, __: FrameType | None) -> None:
        if self.abandoned:
            os._exit(STOPPED)  # closing takes too long
        self.abandoned = True
        can_save = self._seconds_left() is not None
        seconds = max(SLOWEST_SECONDS, self.patience) if can_save else LAST_SECONDS
        signal.setitimer(signal.ITIMER_REAL, seconds)
        raise Stopped


def _say(sentence: str) -> None:
    """Directly to standard error: the signal may have interrupted another print."""
    with suppress(OSError):
        os.write(2, f"{sentence}\n".encode())
