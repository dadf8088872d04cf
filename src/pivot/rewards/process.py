"""Runs the user's reward function in a separate process with a time limit."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pickle
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from pivot.errors import UserError
from pivot.rewards.calling import values_in
from pivot.rewards.worker import LENGTH

START_SECONDS = 300.0
"""Time limit for importing the user's module, which may load a model."""
MAX_DEATHS = 2
"""A call or a start whose process dies is tried again in a new process, this many times in all."""


class RewardProcess:
    """Calls `package.module:function` or `file.py:function` in a process of its own.

    A function that raises, does not return, ends its process or returns anything but numbers is a UserError. Unlike a
    thread, a process can be killed at any time without damage to the trainer.

    Args:
        name: as `pivot.plugins` reads it.
        timeout: seconds per call.
    """

    def __init__(self, name: str, timeout: float) -> None:
        self.name, self.timeout = name, timeout
        self.wants_images = False
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._start()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def call(self, columns: Mapping[str, Any]) -> list[float | None]:
        """A value per completion; the caller checks whether they are finite."""
        frame = pickle.dumps(columns)
        for _ in range(MAX_DEATHS):
            reply = self._exchange(LENGTH.pack(len(frame)) + frame, self.timeout)
            if reply is not None:
                return values_in(reply, self.name, len(columns["completions"]))
            ended = self._end()
        raise UserError(f"the reward function {self.name} ended its process {MAX_DEATHS} times ({ended})")

    def close(self) -> None:
        """End the process; a later call starts a new one."""
        self._end(patience=1.0)
        atexit.unregister(self.close)

    def _start(self) -> None:
        for _ in range(MAX_DEATHS):
            self._launch()
            reply = self._exchange(b"", START_SECONDS)
            if reply is not None:
                break
            ended = self._end(patience=1.0)
        else:
            self.close()
            raise UserError(
                f"the process of the reward function {self.name} ended while it started ({ended})"
            )
        if "problem" in reply:
            self.close()
            raise UserError(reply["problem"])
        self.wants_images = reply["images"]

    def _launch(self) -> None:
        paths = dict.fromkeys(filter(None, sys.path))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pivot.rewards.worker", self.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,  # Ctrl-C at the terminal is for the trainer alone.
        )
        atexit.register(self.close)

    def _exchange(self, data: bytes, timeout: float) -> dict[str, Any] | None:
        """Send `data` and wait for a reply; None if the process died."""
        if self._process is None:
            self._start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        deadline, received, rest = time.monotonic() + timeout, bytearray(), memoryview(data)
        os.set_blocking(process.stdin.fileno(), False)
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if rest:
                selector.register(process.stdin, selectors.EVENT_WRITE)
            while not _is_whole(received):
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    self._overrun(timeout)
                for key, _ in ready:
                    if key.fileobj is process.stdout:
                        piece = os.read(process.stdout.fileno(), 1 << 20)
                        if not piece:
                            return None
                        received += piece
                        continue
                    with contextlib.suppress(BrokenPipeError):  # Its output ends too, which is noticed above.
                        rest = rest[os.write(process.stdin.fileno(), rest) :]
                        if rest:
                            continue
                    selector.unregister(process.stdin)
        return json.loads(received[LENGTH.size :])

    def _overrun(self, timeout: float) -> None:
        self._end()
        raise UserError(
            f"the reward function {self.name} did not return within {timeout:g} s and was killed "
            "(raise reward.timeout if it needs longer)"
        )

    def _end(self, patience: float = 0.0) -> str:
        """Kill the process and everything it started; returns how it ended."""
        process, self._process = self._process, None
        if process is None or os.getpid() != self._owner:
            return "not running"
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        process.stdout.close()
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _is_whole(received: bytearray) -> bool:
    if len(received) < LENGTH.size:
        return False
    (length,) = LENGTH.unpack(received[: LENGTH.size])
    return len(received) - LENGTH.size >= length
