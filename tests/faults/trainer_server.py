"""Starts trainers on order: `python trainer_server.py`, an order a line of JSON on standard input, a reply a line.

Importing torch and transformers takes seconds; forking takes milliseconds. A trainer is a forked child that runs
`pivot ARGUMENTS` and ends; kills, limits and signals reach it alone.
"""

import json
import os
import resource
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from kill_points import hang_at, kill_at, pause_at

import pivot.runs.run  # noqa: F401 - imported once, for all that are forked
from pivot.cli import main
from pivot.rewards.worker import die_with_parent

torch.set_num_threads(1)


@dataclass(frozen=True)
class Order:
    """What to run and what to do to it."""

    arguments: list[str]
    patience: float
    kill_point: str | None = None
    """SIGKILL itself at this point of kill_points.py."""
    hang_point: str | None = None
    """Stop working at this point."""
    pause_point: str | None = None
    """Stay at this point until a signal has come."""
    point_step: int = 2
    """The step of the process from which on a point acts."""
    signals: tuple[tuple[str, str], ...] = ()
    """(signal, words): each is sent when the trainer has said the words, one after the other."""
    watched: str | None = None
    """A file in which the words appear, if not in what it says."""
    signal_delay: float = 0.0
    """Seconds between the words and their signal."""
    kill_after: float | None = None
    """SIGKILL from outside after this many seconds."""
    folder: str | None = None
    """Where it works; by default where the server was started."""
    environment: dict[str, str] = field(default_factory=dict)
    largest_file: int | None = None
    """Bytes a file may have: the system refuses more."""


def serve() -> None:
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(fulfil(Order(**json.loads(line)))), flush=True)


def fulfil(order: Order) -> dict[str, object]:
    with tempfile.NamedTemporaryFile() as log:
        child = os.fork()
        if child == 0:
            be_trainer(order, log.fileno())
        code, overdue = wait(child, order, Path(log.name))
        return {"code": code, "overdue": overdue, "said": Path(log.name).read_text(errors="replace")}


def be_trainer(order: Order, log: int) -> None:
    os.setsid()
    die_with_parent()  # a test that is broken off leaves no trainer behind
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = 1
    try:
        os.environ.update(order.environment)
        if order.folder is not None:
            os.chdir(order.folder)
        if order.largest_file is not None:
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (order.largest_file, hard))
        if order.kill_point is not None:
            kill_at(order.kill_point, order.point_step)
        if order.hang_point is not None:
            hang_at(order.hang_point, order.point_step)
        if order.pause_point is not None:
            pause_at(order.pause_point, order.point_step)
        code = main(order.arguments)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(child: int, order: Order, log: Path) -> tuple[int, bool]:
    """The child's exit code or minus its signal, and whether it had to be ended for being overdue."""
    begin, overdue, killed = time.monotonic(), False, False
    signals = list(order.signals)
    watched = log if order.watched is None else Path(order.watched)
    while True:
        if signals and watched.exists() and signals[0][1] in watched.read_text(errors="replace"):
            time.sleep(order.signal_delay)
            os.kill(child, signal.Signals[signals.pop(0)[0]])
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status), overdue
        elapsed = time.monotonic() - begin
        overdue = elapsed > order.patience
        if not killed and (overdue or (order.kill_after is not None and elapsed > order.kill_after)):
            os.kill(child, signal.SIGKILL)
            killed = True
        time.sleep(0.005)


if __name__ == "__main__":
    serve()
