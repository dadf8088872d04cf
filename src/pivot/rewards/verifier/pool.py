"""A few library processes behind pipes: started when first needed, killed and replaced when they overrun."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO

from .reason import Reason

START_SECONDS = 60.0
"""For importing the library on a busy machine."""
WALL_FACTOR = 1.5
"""By the clock, a question may take this many times its processor time: neighbours make it slower."""
PATIENCE_SECONDS = 1.0
"""Beyond a question's time: its alarms have ended it long before, unless the worker hangs as a whole."""
MAX_CRASHES = 2
"""A job is tried again when its worker died of something else than the alarm, this many times in all."""


@dataclass
class Job:
    """One question to the library: do these two agree?"""

    given: str
    answer: str
    outcome: Reason | None = None
    crashes: int = 0


class _Worker:
    """One process, with at most one job under way."""

    def __init__(self, library: str, seconds: float, megabytes: int) -> None:
        wall_seconds = WALL_FACTOR * seconds
        limits = (seconds, wall_seconds, megabytes)
        # A session of its own: Ctrl-C at the terminal must not take the graders from a trainer that saves.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pivot.rewards.verifier.worker", library, *map(str, limits)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.input: IO[bytes] = self.process.stdin
        self.output: IO[bytes] = self.process.stdout
        self.is_ready = False
        self.job: Job | None = None
        self.job_id = 0
        self.deadline = 0.0
        self._limit = wall_seconds + PATIENCE_SECONDS
        self._partial = b""

    def send(self, job: Job) -> None:
        self.job, self.job_id = job, self.job_id + 1
        self.deadline = time.monotonic() + (self._limit if self.is_ready else START_SECONDS)
        message = {"id": self.job_id, "given": job.given, "answer": job.answer}
        line = json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
        self.input.write(line)

    def messages(self) -> Iterable[dict[str, object]] | None:
        """What has arrived; None at the end of the stream."""
        data = os.read(self.output.fileno(), 65536)
        if not data:
            return None
        *lines, self._partial = (self._partial + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def now_ready(self) -> None:
        self.is_ready = True
        self.deadline = time.monotonic() + self._limit

    def stop(self, patience: float = 0.0) -> None:
        """Close its input, wait, then kill its whole session; nothing is left behind."""
        self.input.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.output.close()


class WorkerPool:
    """Runs jobs on up to `size` processes, in the calling thread, and always comes back."""

    def __init__(self, library: str, size: int = 2, seconds: float = 1.0, megabytes: int = 512) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        self.size = size
        self._library = library
        self._seconds = seconds
        self._megabytes = megabytes
        self._workers: list[_Worker] = []
        self._owner = os.getpid()

    def run(self, jobs: Sequence[Job]) -> None:
        """Set the outcome of every job: correct, wrong, unparsable or timed out."""
        waiting = deque(jobs)
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                selector.register(worker.output, selectors.EVENT_READ, worker)
            while waiting or any(worker.job for worker in self._workers):
                self._assign(waiting, selector)
                nearest = min(worker.deadline for worker in self._workers if worker.job)
                for key, _ in selector.select(max(0.0, nearest - time.monotonic())):
                    self._receive(key.data, waiting, selector)
                for worker in [w for w in self._workers if w.job and w.deadline < time.monotonic()]:
                    self._expire(worker, selector)

    def close(self) -> None:
        """End all processes; the pool can be used again afterwards."""
        if os.getpid() != self._owner:
            return  # a forked copy of the trainer does not own them
        for worker in self._workers:
            worker.input.close()
        for worker in self._workers:
            worker.stop(patience=1.0)
        self._workers.clear()
        atexit.unregister(self.close)

    @property
    def pids(self) -> list[int]:
        """Of the processes that run now (each has one child that does the work)."""
        return [worker.process.pid for worker in self._workers]

    def _assign(self, waiting: deque[Job], selector: selectors.BaseSelector) -> None:
        idle = [worker for worker in self._workers if worker.job is None]
        while waiting and (idle or len(self._workers) < self.size):
            worker = idle.pop() if idle else self._start(selector)
            job = waiting.popleft()
            try:
                worker.send(job)
            except BrokenPipeError:
                self._lose(worker, waiting, selector)

    def _start(self, selector: selectors.BaseSelector) -> _Worker:
        if not self._workers:
            atexit.register(self.close)
        worker = _Worker(self._library, self._seconds, self._megabytes)
        self._workers.append(worker)
        selector.register(worker.output, selectors.EVENT_READ, worker)
        return worker

    def _receive(self, worker: _Worker, waiting: deque[Job], selector: selectors.BaseSelector) -> None:
        messages = worker.messages()
        if messages is None:
            if not worker.is_ready:
                raise RuntimeError("the verifier's worker process could not start; its error stands above")
            self._lose(worker, waiting, selector)
            return
        for message in messages:
            if "ready" in message:
                worker.now_ready()
            elif "died" in message:
                self._settle_death(worker, message["died"] == "timed out", waiting)
            elif worker.job and message["id"] == worker.job_id:
                worker.job.outcome = _OUTCOMES[message["equal"]]
                worker.job = None

    def _settle_death(self, worker: _Worker, timed_out: bool, waiting: deque[Job]) -> None:
        """The child died and is being replaced; decide about the job that it may have been working on."""
        job, worker.job = worker.job, None
        if job is None:
            return
        if timed_out:
            job.outcome = Reason.TIMED_OUT
            return
        job.crashes += 1
        if job.crashes < MAX_CRASHES:
            waiting.appendleft(job)
        else:
            job.outcome = Reason.UNPARSABLE

    def _lose(self, worker: _Worker, waiting: deque[Job], selector: selectors.BaseSelector) -> None:
        """The whole process is gone."""
        self._settle_death(worker, False, waiting)
        self._remove(worker, selector)

    def _expire(self, worker: _Worker, selector: selectors.BaseSelector) -> None:
        if worker.job is not None:
            worker.job.outcome = Reason.TIMED_OUT
        self._remove(worker, selector)

    def _remove(self, worker: _Worker, selector: selectors.BaseSelector) -> None:
        selector.unregister(worker.output)
        self._workers.remove(worker)
        worker.stop()


_OUTCOMES = {True: Reason.CORRECT, False: Reason.WRONG, None: Reason.UNPARSABLE}
