"""Runs one after the other, each command in a process of its own; what is finished stays finished."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from pivot.sweep.followups import followups, results_folder
from pivot.sweep.plan import Plan
from pivot.sweep.runs import SweepRun
from pivot.sweep.scores import unmeasured

Execute = Callable[[list[str], Path], int]
"""(words of a pivot command, log file) -> its exit code."""


class Stopped(Exception):
    """A signal asked the sweep to stop."""


@dataclass
class Outcome:
    """How a sweep ended."""

    failed: list[tuple[str, Path]] = field(default_factory=list)
    """What failed, and its log."""
    left_out: list[SweepRun] = field(default_factory=list)
    """Runs that wait for settings only the user can give."""
    stopped: bool = False


def run_sweep(plan: Plan, runs: Sequence[SweepRun], execute: Execute, say: Callable[[str], None]) -> Outcome:
    """Train and evaluate what is missing; a run that fails is noted, and the rest goes on."""
    outcome = Outcome()
    try:
        for number, run in enumerate(runs, start=1):
            if run.missing:
                outcome.left_out.append(run)
                continue
            log = run.folder.parent / "logs" / f"{run.folder.name}.log"
            if not _complete(run, log, execute, lambda text, n=number: say(f"[{n}/{len(runs)}] {text}")):
                outcome.failed.append((run.label, log))
        _run_followups(plan, runs, execute, say, outcome)
    except Stopped:
        outcome.stopped = True
    return outcome


def _complete(run: SweepRun, log: Path, execute: Execute, say: Callable[[str], None]) -> bool:
    """Train the run to its end, then evaluate it; False where a command failed."""
    if not run.is_trained:
        command = run.next_train_command()
        say(f"{run.label}: {'resuming' if '--resume' in command else 'training'} (log: {log})")
        if execute(command, log) != 0 or not run.is_trained:
            return False
    benchmarks = unmeasured(run)
    if not benchmarks:
        say(f"{run.label}: finished")
        return True
    say(f"{run.label}: evaluating on {', '.join(benchmarks)} (log: {log})")
    return execute(run.eval_command(benchmarks), log) == 0


def _run_followups(
    plan: Plan, runs: Sequence[SweepRun], execute: Execute, say: Callable[[str], None], outcome: Outcome
) -> None:
    """Once their runs are there; a finished command is written down, and not repeated."""
    for number, command in enumerate(followups(plan, runs), start=1):
        folder, said = results_folder(plan, runs), f"pivot {command.words[0]}"
        log = folder.parents[1] / "logs" / f"{plan.name}-then-{number}.log"
        done, text = folder / f"then-{number}.done", shlex.join(command.words)
        if command.waits_for:
            say(f"{said}: waits for {'; '.join(command.waits_for)}")
        elif not done.exists() or done.read_text(encoding="utf-8") != text:
            say(f"{said} (log: {log})")
            if execute(command.words, log) != 0:
                outcome.failed.append((said, log))
                continue
            done.parent.mkdir(parents=True, exist_ok=True)
            done.write_text(text, encoding="utf-8")


def execute_in_process(words: list[str], log: Path) -> int:
    """Run `pivot WORDS` and wait; SIGINT and SIGTERM are passed on, so that a run can save its step.

    Raises:
        Stopped: a signal came; the command has ended.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    # -P: the folder that the user is in must not shadow a module.
    command = [sys.executable, "-P", "-m", "pivot", *words]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with log.open("ab") as output:
        output.write(f"$ pivot {shlex.join(words)}\n".encode())
        output.flush()
        with _signals() as asked:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment,
                start_new_session=True,  # Ctrl-C reaches the sweep alone, which passes it on once
            )  # fmt: skip
            asked.process = process
            if asked.came:  # before there was a process to pass it on to
                process.terminate()
            code = process.wait()
    if asked.came:
        raise Stopped
    return code


@dataclass
class _Asked:
    """Whether a signal came, and the process to pass it on to."""

    came: bool = False
    process: subprocess.Popen[bytes] | None = None


@contextmanager
def _signals() -> Iterator[_Asked]:
    """SIGINT and SIGTERM become a SIGTERM of the command, whose own patience decides how long that takes."""
    asked = _Asked()

    def pass_on(number: int, frame: FrameType | None) -> None:
        asked.came = True
        if asked.process is not None:
            asked.process.send_signal(signal.SIGTERM)

    try:
        before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: signals belong to somebody else
        before = {}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def last_line(log: Path) -> str:
    """The last thing that a command said."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it wrote nothing"
