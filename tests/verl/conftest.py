"""Runs through `pivot train --engine verl`, as a user starts them, on CPUs."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

SMALL = [
    "train.prompts_per_step=8",
    "train.minibatch_prompts=4",
    "rollout.responses=6",
    "data.size=64",
    "data.validation_size=8",
    "eval.every=0",
    "eval.final_prompts=0",
    "log.rollouts_every=2",
    "checkpoint.stop_seconds=600",
]


class Run:
    """A run in the background."""

    def __init__(self, out: Path, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self.out = out
        self.log = out.with_suffix(".out").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "pivot", "train", *arguments],
            stdout=self.log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        )

    @property
    def steps(self) -> int:
        path = self.out / "metrics.jsonl"
        return len(path.read_bytes().splitlines()) if path.exists() else 0

    def wait_for(self, steps: int, timeout: float = 2400) -> None:
        end = time.monotonic() + timeout
        while self.steps < steps:
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < end, self.said()
            time.sleep(0.2)

    def finish(self, timeout: float = 2400) -> int:
        return self.process.wait(timeout)

    def said(self) -> str:
        text = self.out.with_suffix(".out").read_text()
        log = self.out / "verl.log"
        return f"{text}\n{log.read_text(errors='replace')[-4000:] if log.exists() else ''}"


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Start a run; it is ended with the module, whatever happens."""
    folder = tmp_path_factory.mktemp("runs")
    runs = []

    def make(name: str, *arguments: str, settings=(), environment=None) -> Run:
        replay = () if "dapo" in arguments else ("method.warmup_share=0.1",)
        given = [part for setting in (*SMALL, *replay, *settings) for part in ("--set", setting)]
        out = folder / name
        resumed = "--resume" in arguments
        more = arguments if resumed else ("--engine", "verl", "--out", str(out), *arguments, *given)
        runs.append(Run(out, *more, environment=environment))
        return runs[-1]

    yield make
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()  # verl's driver notices, and takes everything with it
            run.process.wait()
        run.log.close()
