"""Contenders take turns: each is a process of its own that does one piece of work whenever it is asked to.

Whatever else the machine does then falls on all of them alike, and a ratio of two turns of one round means something
where seconds don't. Nothing here needs the project: peers run it from environments of their own.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

Turn = dict[str, Any]
MARK = "TURN "
"""Begins the lines that are answers."""


class Contender:
    """A running process that answers each empty line with the JSON of one turn."""

    def __init__(self, name: str, command: Sequence[str], threads: int, *, begin: bool = True) -> None:
        self.name, self._command = name, list(command)
        self._environment = os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
        if begin:
            self.begin()

    def begin(self) -> None:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self._environment
        )
        self._read()

    def turn(self) -> Turn:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=120)

    def _read(self) -> Turn:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                return json.loads(line.removeprefix(MARK))
        raise SystemExit(f"{self.name} ended with code {self._process.wait()}; what it said stands above")


class Stage:
    """A contender's side: `wait` for a turn, then `answer` it. Whatever else it prints is passed over."""

    def __init__(self) -> None:
        self._say({})

    def wait(self) -> bool:
        """False when no more turns will come."""
        asked = bool(sys.stdin.readline())
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return asked

    def answer(self, **more: Any) -> None:
        times = {"seconds": time.perf_counter() - self._wall, "cpu_seconds": time.process_time() - self._cpu}
        self._say(times | more)

    def _say(self, turn: Turn) -> None:
        print(f"\n{MARK}{json.dumps(turn)}", flush=True)


def serve(work: Callable[[], Mapping[str, Any]]) -> None:
    """Do `work` once a turn and answer with its times and what it returned."""
    stage = Stage()
    while stage.wait():
        stage.answer(**work())


def play_apart(contenders: Iterable[Contender], rounds: int, warmups: int = 0) -> dict[str, list[Turn]]:
    """The same where two contenders do not fit into memory: each begins again for its turn of a round."""
    contenders = list(contenders)
    turns: dict[str, list[Turn]] = {contender.name: [] for contender in contenders}
    for number in range(rounds):
        for contender in contenders:
            contender.begin()
            turn = [contender.turn() for _ in range(warmups + 1)][-1]
            contender.close()
            turns[contender.name].append(turn)
            print(f"  round {number + 1}: {contender.name} {turn}", file=sys.stderr, flush=True)
    return turns


def play(contenders: Iterable[Contender], rounds: int, warmups: int = 2) -> dict[str, list[Turn]]:
    """`rounds` turns of each, in turn; the first `warmups` are not counted."""
    contenders = list(contenders)
    turns: dict[str, list[Turn]] = {contender.name: [] for contender in contenders}
    for number in range(warmups + rounds):
        for contender in contenders:
            turn = contender.turn()
            if number >= warmups:
                turns[contender.name].append(turn)
        now = "  ".join(f"{name} {found[-1]['seconds']:.2f}s" for name, found in turns.items() if found)
        print(
            f"  round {number + 1 - warmups}: {now}" if now else "  warming up", file=sys.stderr, flush=True
        )
    for contender in contenders:
        contender.close()
    return turns


def ratio(turns: Mapping[str, list[Turn]], above: str, below: str, key: str = "seconds") -> str:
    """Median and range over the rounds of one contender's time over another's."""
    ratios = sorted(a[key] / b[key] for a, b in zip(turns[above], turns[below], strict=True))
    return f"{median(ratios):.2f}x ({ratios[0]:.2f}-{ratios[-1]:.2f})"


def middle(turns: Sequence[Turn], key: str) -> float:
    return median(turn[key] for turn in turns)


def machine() -> str:
    """One line for the head of a table."""
    cpu = "a CPU"
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as lines:
            cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), cpu)
    load = os.getloadavg()[0]
    return f"{os.cpu_count()} cores of {cpu}, {platform.system()}, load {load:.1f} at the start"
