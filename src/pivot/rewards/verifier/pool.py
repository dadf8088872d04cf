"""Worker processes for the libraries: started when first needed, killed and replaced when they exceed their limits."""

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
from enum import StrEnum
from typing import IO

from pivot.errors import UserError

START_SECONDS = 60.0
"""For importing the library on a busy machine."""
MAX_FAILED_STARTS = 3
"""A worker that dies while it starts is started again; after this many failures in a row the pool gives up."""
WALL_FACTOR = 1.5
"""Wall-clock limit of a job as a multiple of its processor time limit, since other processes slow it down."""
PATIENCE_SECONDS = 1.0
"""Added to the wall-clock limit before the pool kills a worker whose own alarms have not ended the job."""
MAX_CRASHES = 2
"""A job whose worker died of anything but its time limit runs again, at most this many times in all."""


class Reason(StrEnum):
    """The outcomes of the verifier; `Reward.reason` and `pivot grade` show these strings."""

    CORRECT = "correct"
    WRONG = "wrong"
    NO_BOX = "no box"
    """The response has no `\\boxed{...}` with balanced braces."""
    NO_ANSWER = "no answer"
    """Likewise where `prompt.answer` is another form than a box."""
    UNPARSABLE = "unparsable"
    """The box is empty, or its content exceeds the bounds of exact arithmetic (a huge power)."""
    TIMED_OUT = "timed out"
    """The library or the search for the answer exceeded its time limit."""
    TOO_LONG = "too long"
    """The last box holds more than `MAX_BOX_CHARS` characters."""


@dataclass
class Job:
    """One comparison for the library."""

    given: str
    answer: str
    outcome: Reason | None = None
    crashes: int = 0


class _Worker:
    """One process with at most one job in progress."""

    def __init__(self, library: str, seconds: float, megabytes: int) -> None:
        wall_seconds = WALL_FACTOR * seconds
        limits = (seconds, wall_seconds, megabytes)
        # A session of its own, so that Ctrl-C does not kill the workers of a trainer that is saving.
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
        """The messages that have arrived; None at the end of the stream."""
        data = os.read(self.output.fileno(), 65536)
        if not data:
            return None
        *lines, self._partial = (self._partial + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def now_ready(self) -> None:
        self.is_ready = True
        self.deadline = time.monotonic() + self._limit

    def stop(self, patience: float = 0.0) -> None:
        """Close its input, wait up to `patience` seconds, then kill its whole session."""
        self.input.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.output.close()

    @property
    def exit_status(self) -> str:
        """How a stopped process ended."""
        code = self.process.returncode
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


class WorkerPool:
    """Runs jobs on up to `size` processes from the calling thread; every job ends within its limits."""

    def __init__(self, library: str, size: int = 2, seconds: float = 1.0, megabytes: int = 512) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        self.size = size
        self._library = library
        self._seconds = seconds
        self._megabytes = megabytes
        self._workers: list[_Worker] = []
        self._owner = os.getpid()
        self._failed_starts = 0

    def run(self, jobs: Sequence[Job]) -> None:
        """Set the outcome of every job: correct, wrong, unparsable or timed out.

        Raises UserError if workers repeatedly die while they start.
        """
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
                    self._lose(worker, waiting, selector, timed_out=True)

    def close(self) -> None:
        """End all processes; a later `run` starts new ones."""
        if os.getpid() != self._owner:
            return  # A forked copy of the trainer does not own them.
        for worker in self._workers:
            worker.input.close()
        for worker in self._workers:
            worker.stop(patience=1.0)
        self._workers.clear()
        atexit.unregister(self.close)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers; each has one child that runs the jobs."""
        return [worker.process.pid for worker in self._workers]

    def _assign(self, waiting: deque[Job], selector: selectors.BaseSelector) -> None:
        idle = [worker for worker in self._workers if worker.job is None]
        while waiting and (idle or len(self._workers) < self.size):
            worker = idle.pop() if idle else self._start(selector)
            job = waiting.popleft()
            try:
                worker.send(job)
            except BrokenPipeError:  # It died while idle or starting, before it received the job.
                worker.job = None
                waiting.appendleft(job)
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
            self._lose(worker, waiting, selector)
            return
        for message in messages:
            if "ready" in message:
                self._failed_starts = 0
                worker.now_ready()
            elif "died" in message:
                self._settle_death(worker, message["died"] == "timed out", waiting)
            elif worker.job and message["id"] == worker.job_id:
                worker.job.outcome = _OUTCOMES[message["equal"]]
                worker.job = None

    def _settle_death(self, worker: _Worker, timed_out: bool, waiting: deque[Job]) -> None:
        """Decide about the job that a dead child may have been working on."""
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

    def _lose(
        self,
        worker: _Worker,
        waiting: deque[Job],
        selector: selectors.BaseSelector,
        *,
        timed_out: bool = False,
    ) -> None:
        """Remove a worker whose whole process died or did not reply in time."""
        if worker.is_ready:
            self._settle_death(worker, timed_out, waiting)
            self._remove(worker, selector)
        else:
            self._retry_start(worker, waiting, selector)

    def _retry_start(self, worker: _Worker, waiting: deque[Job], selector: selectors.BaseSelector) -> None:
        """Remove a worker that never became ready; its job goes to the next one."""
        if worker.job is not None:
            waiting.appendleft(worker.job)
        self._remove(worker, selector, patience=1.0)
        self._failed_starts += 1
        if self._failed_starts >= MAX_FAILED_STARTS:
            count, self._failed_starts = self._failed_starts, 0
            raise UserError(
                f"the verifier's {self._library} process failed to start {count} times in a row "
                f"({worker.exit_status}); check that {self._library} is installed and that memory is free."
            )

    def _remove(self, worker: _Worker, selector: selectors.BaseSelector, patience: float = 0.0) -> None:
        selector.unregister(worker.output)
        self._workers.remove(worker)
        worker.stop(patience)


_OUTCOMES = {True: Reason.CORRECT, False: Reason.WRONG, None: Reason.UNPARSABLE}
