"""Cells one after another or several at a time, each in a process of its own; what is done stays done."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType

from pivot.errors import UserError
from pivot.reproduce.cells import cell_name, result_path
from pivot.reproduce.forecast import Forecast, Standing
from pivot.reproduce.plan import Cell, Plan
from pivot.reproduce.worker import STOPPED

POLL_SECONDS = 0.2
PATIENCE_SECONDS = 120.0
"""How long cells may take to finish their step and save it once they are asked to stop."""


@dataclass(frozen=True)
class Places:
    """Where things are."""

    plan: Path
    results: Path
    work: Path


@dataclass
class Running:
    """A cell at work."""

    cell: Cell
    process: subprocess.Popen[bytes]
    log: Path
    began: float = field(default_factory=time.monotonic)


@dataclass
class Outcome:
    """How a call of `run_plan` ended."""

    finished: int = 0
    failed: list[tuple[Cell, Path]] = field(default_factory=list)
    """Cells that broke, with their logs."""
    stopped: bool = False


def pending_cells(plan: Plan, cells: Sequence[Cell], results: Path) -> list[Cell]:
    return [cell for cell in cells if not result_path(plan, cell, results).exists()]


def run_plan(plan: Plan, cells: Sequence[Cell], places: Places, jobs: int, forecast: Forecast) -> Outcome:
    """Run what is missing among `cells`, `jobs` at a time; a signal stops the cells after their step."""
    with _only_one(places.work), _signals() as asked:
        schedule = _Schedule(plan, places, forecast)
        waiting = pending_cells(plan, cells, places.results)
        while (waiting or schedule.running) and not asked:
            while waiting and len(schedule.running) < jobs:
                schedule.launch(waiting.pop(0))
            schedule.collect()
            forecast.show(schedule.standing(), waiting)
            time.sleep(POLL_SECONDS)
        if asked:
            schedule.stop()
        return schedule.outcome


class _Schedule:
    def __init__(self, plan: Plan, places: Places, forecast: Forecast) -> None:
        self.plan, self.places, self.forecast = plan, places, forecast
        self.running: list[Running] = []
        self.outcome = Outcome()

    def launch(self, cell: Cell) -> None:
        folder = self.places.work / cell_name(self.plan, cell)
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / "cell.log"
        where = [str(p.resolve()) for p in (self.places.plan, self.places.work, self.places.results)]
        command = [sys.executable, "-P", "-m", "pivot.reproduce.worker", *where, json.dumps(asdict(cell))]
        with log.open("ab") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=_one_thread(),
                start_new_session=True,  # a Ctrl-C goes to the scheduler alone, which passes it on
            )  # fmt: skip
        self.running.append(Running(cell, process, log))
        self.forecast.began(cell)

    def collect(self) -> None:
        for one in list(self.running):
            code = one.process.poll()
            if code is None:
                continue
            self.running.remove(one)
            if code == 0:
                self.outcome.finished += 1
                self.forecast.ended(one.cell, time.monotonic() - one.began)
            elif code == STOPPED:
                self.outcome.stopped = True
            else:
                self.outcome.failed.append((one.cell, one.log))
                self.forecast.broke(one.cell, code, one.log)

    def standing(self) -> list[Standing]:
        return [
            Standing(one.cell, time.monotonic() - one.began, self._share_done(one)) for one in self.running
        ]

    def _share_done(self, one: Running) -> float:
        """Steps that are written down, of those that are planned."""
        metrics = one.log.parent / "run" / "metrics.jsonl"
        config = one.log.parent / "run" / "config.json"
        if not metrics.exists() or not config.exists():
            return 0.0
        steps = json.loads(config.read_bytes())["train"]["steps"]
        return min(1.0, metrics.read_bytes().count(b"\n") / steps)

    def stop(self) -> None:
        """Ask every cell to finish its step and save; kill those that take too long."""
        self.outcome.stopped = True
        for one in self.running:
            one.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + PATIENCE_SECONDS
        for one in self.running:
            try:
                one.process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                one.process.kill()
                one.process.wait()
        self.running = []


def _one_thread() -> dict[str, str]:
    """Cells side by side neither disturb each other nor depend on the number of cores."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    quiet = {"OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **threads, **quiet}


@contextmanager
def _only_one(work: Path) -> Iterator[None]:
    work.mkdir(parents=True, exist_ok=True)
    with (work / "reproduce.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another `pivot reproduce` is at work in {work}; wait or give --work.") from None
        yield


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM instead of dying of them."""
    asked: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        asked.append(number)

    try:
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: signals belong to somebody else
        before = {}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
