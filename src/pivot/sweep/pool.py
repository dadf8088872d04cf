"""Runs commands in processes of their own, several at a time; they end with this process, also when it is killed."""

from __future__ import annotations

import fcntl
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Protocol

from pivot.errors import UserError

CHILD = Path(__file__).with_name("child.py")
POLL_SECONDS = 0.5
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Environment = Mapping[str, str]


@dataclass(frozen=True)
class Command:
    """What a task does next."""

    words: list[str]
    about: str
    """For the progress line: `training`."""


class Task(Protocol):
    """Something to complete by one or more commands; what is there on disk says which is next."""

    @property
    def label(self) -> str: ...

    @property
    def log(self) -> Path: ...

    def next_command(self) -> Command | None:
        """None: nothing is left to do."""
        ...


@dataclass
class Outcome:
    """How the tasks ended."""

    failed: list[tuple[str, Path]] = field(default_factory=list)
    """Label and log of each task that failed."""
    stopped: bool = False
    """A signal came; the same tasks continue where they were."""


class Pool:
    """Completes tasks, as many at a time as there are slots; a task that fails does not end the others."""

    def __init__(self, slots: Sequence[Environment] = ({},), module: str = "pivot") -> None:
        """`slots`: what each concurrent process has in its environment; `module`: what `python -m` runs."""
        self.slots, self.module = slots, module
        self.stopped = False
        self._processes: set[subprocess.Popen[bytes]] = set()

    def run(self, tasks: Sequence[Task], say: Callable[[str], None]) -> Outcome:
        """Complete all tasks; SIGINT, SIGTERM and SIGHUP stop them, and a training run saves its step first."""
        outcome = Outcome()
        progress = _Progress(len(tasks), len(self.slots), say)
        free: SimpleQueue[Environment] = SimpleQueue()
        for slot in self.slots:
            free.put(slot)

        def complete(number: int, task: Task) -> None:
            environment = free.get()
            try:
                if not self._complete(number, task, environment, progress):
                    outcome.failed.append((task.label, task.log))
            finally:
                free.put(environment)

        with self._signals(), ThreadPoolExecutor(len(self.slots)) as threads:
            for future in [threads.submit(complete, *pair) for pair in enumerate(tasks, start=1)]:
                future.result()
        outcome.stopped = self.stopped
        return outcome

    def _complete(self, number: int, task: Task, environment: Environment, progress: _Progress) -> bool:
        """Every command of a task; False where one failed, or exited with 0 without having done its work."""
        began, last = time.monotonic(), None
        with self._alone(task, lambda text: progress.say(number, text)) as lock:
            while not self.stopped and (command := task.next_command()) is not None:
                if command == last:
                    return False
                progress.say(number, f"{task.label}: {command.about} (log: {task.log})")
                code = self.execute(command.words, task.log, environment, lock)
                if code != 0:
                    return self.stopped
                last = command
        if not self.stopped:
            progress.finished(number, task.label, time.monotonic() - began if last else 0.0)
        return True

    def execute(self, words: list[str], log: Path, environment: Environment, lock: int) -> int:
        """Run `python -m MODULE WORDS` and wait for its exit code; its output goes to the log."""
        # -P: the folder that the user is in must not shadow a module.
        command = [sys.executable, "-P", "-m", self.module, *words]
        watched = [sys.executable, "-I", str(CHILD), str(os.getpid()), *command]
        with log.open("ab") as output:
            output.write(f"$ {self.module} {shlex.join(words)}\n".encode())
            output.flush()
            process = subprocess.Popen(
                watched, stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=(lock,),
                env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
                start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on once
            )  # fmt: skip
        self._processes.add(process)
        if self.stopped:  # the signal came before there was a process to pass it on to
            process.terminate()
        code = process.wait()
        self._processes.discard(process)
        return code

    @contextmanager
    def _alone(self, task: Task, say: Callable[[str], None]) -> Iterator[int]:
        """Hold the task's lock, which its processes inherit: one that outlives a killed sweep still holds it."""
        task.log.parent.mkdir(parents=True, exist_ok=True)
        with task.log.with_suffix(".lock").open("w") as file:
            waited = False
            while not self.stopped:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not waited:
                        say(f"{task.label}: another process is working on it; waiting")
                    waited = True
                    time.sleep(POLL_SECONDS)
            yield file.fileno()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """A signal becomes a SIGTERM of every process; their own patience decides how long stopping takes."""

        def stop(number: int, frame: FrameType | None) -> None:
            self.stopped = True
            for process in list(self._processes):
                process.terminate()

        try:
            heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
            before = {number: signal.signal(number, stop) for number in heard}
        except ValueError:  # not the main thread, which alone may set handlers
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Progress:
    """One line per event, with the time left by the tasks finished so far."""

    def __init__(self, total: int, jobs: int, say: Callable[[str], None]) -> None:
        self._total, self._jobs, self._say = total, jobs, say
        self._done = 0
        self._durations: list[float] = []

    def say(self, number: int, text: str) -> None:
        self._say(f"[{number}/{self._total}] {text}")

    def finished(self, number: int, label: str, seconds: float) -> None:
        """`seconds`: 0 where there was nothing to do."""
        self._done += 1
        self._durations += [seconds] if seconds else []
        waiting = self._total - self._done
        text = f"{label}: finished" + (f" in {spell(seconds)}" if seconds else "")
        if self._durations and waiting:
            mean = sum(self._durations) / len(self._durations)
            text += f"; {waiting} left, about {spell(mean * waiting / min(self._jobs, waiting))}"
        self.say(number, text)


def job_slots(jobs: int, gpus_per_job: int) -> list[dict[str, str]]:
    """The environments of so many jobs at a time: GPUs of its own for each, or on a CPU its share of the cores."""
    if jobs < 1:
        raise UserError(f"--jobs is {jobs}; it must be at least 1.")
    if jobs == 1:
        return [{}]
    devices = _visible_gpus()
    if not devices:
        threads = str(max(1, (os.cpu_count() or 1) // jobs))
        return [{"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads)}] * jobs
    if len(devices) < jobs * gpus_per_job:
        raise UserError(
            f"--jobs {jobs} needs {jobs * gpus_per_job} GPUs ({gpus_per_job} per run), but {len(devices)} are visible."
        )
    shares = [devices[i * gpus_per_job : (i + 1) * gpus_per_job] for i in range(jobs)]
    return [{"CUDA_VISIBLE_DEVICES": ",".join(share)} for share in shares]


def _visible_gpus() -> list[str]:
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [device.strip() for device in given.split(",") if device.strip() not in ("", "-1")]
    import torch

    return [str(i) for i in range(torch.cuda.device_count())]


def last_line(log: Path) -> str:
    """The last line that a command wrote."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it wrote nothing"


def spell(seconds: float) -> str:
    """`3 h 05 min`, `12 min`, `40 s`."""
    if round(seconds) < 90:
        return f"{round(seconds)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
