"""verl's process, as the process of `pivot train` starts it, shows its progress and asks it to stop. Needs no verl."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from pivot.engines.verl.compose import Launch

PARENT = "PIVOT_PARENT"
"""Environment variable: the process of `pivot train`."""
STOP = "stop"
"""In the run's folder: asks the run to save and stop after its step; holds the reason."""
PROGRESS = "progress.log"
"""In the run's folder: the progress that the process of `pivot train` shows."""
LOG = "verl.log"
"""In the run's folder: the output of verl and Ray."""
POLL_SECONDS = 0.2
LAST_SECONDS = 20.0
"""For Ray to end its processes."""


@dataclass
class Child:
    """verl's process, as the terminal sees it."""

    launch: Launch
    out: Path
    patience: Callable[[], float]
    """Seconds that a step may take to finish and be saved after a request to stop."""
    quiet: bool
    asked: list[signal.Signals] = field(default_factory=list)
    abandoned: str | None = None
    """Why the last step was not waited for."""
    private: dict[str, str] = field(default_factory=lambda: {PARENT: str(os.getpid())})
    """More environment variables, kept out of `--dry-run`: the parent process, and a local Ray's token."""
    _deadline: float | None = None

    def wait(self) -> int:
        """Show its progress until it ends; returns its exit code."""
        shown = self.out / PROGRESS
        shown.touch()
        with (self.out / LOG).open("ab") as log, shown.open(encoding="utf-8") as progress, self._signals():
            progress.seek(0, os.SEEK_END)
            process = subprocess.Popen(
                self.launch.command,
                env={**os.environ, **self.launch.environment, **self.private},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches this process only
            )
            try:
                while process.poll() is None and self._continues():
                    self._show(progress)
                    time.sleep(POLL_SECONDS)
            finally:
                _end(process)
            self._show(progress)
            return process.returncode

    def _show(self, progress: TextIO) -> None:
        new = progress.read()
        if new and not self.quiet:
            print(new, end="", flush=True)

    def _continues(self) -> bool:
        """The first signal asks for a checkpoint; a second SIGINT, or a step that takes too long, ends the run."""
        if not self.asked:
            return True
        name = self.asked[0].name
        if self._deadline is None:
            self._deadline = time.monotonic() + self.patience()
            (self.out / STOP).write_text(name, encoding="ascii")
            print(f"{name}: saving after this step (Ctrl-C to quit at once)", file=sys.stderr)
        if signal.SIGINT in self.asked[1:]:
            self.abandoned = "interrupted twice"
        elif time.monotonic() > self._deadline:
            self.abandoned = f"{name}, step abandoned after {self.patience():g} s"
        return self.abandoned is None

    @contextmanager
    def _signals(self) -> Iterator[None]:
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {n: signal.signal(n, lambda n, _: self.asked.append(signal.Signals(n))) for n in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _end(process: subprocess.Popen) -> None:
    """Terminate the driver, upon which Ray ends its processes."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(LAST_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
