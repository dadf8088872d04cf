"""Trainers that can be started quickly, killed anywhere and compared; used by the fault tests and the soak."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from safetensors.numpy import load_file

from pivot.config import Config, to_dict

PATIENCE = 300.0
"""Seconds a trainer of a few tiny steps may take on a busy machine before something is wrong."""


@dataclass(frozen=True)
class Ended:
    """How a trainer's process ended."""

    code: int
    """Its exit code, or minus the signal."""
    said: str
    """Standard output and error."""

    @property
    def was_killed(self) -> bool:
        return self.code == -signal.SIGKILL


class TrainerServer:
    """Forks trainers from a process that has imported everything once; each is a process of its own."""

    def __enter__(self):
        script = Path(__file__).with_name("trainer_server.py")
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self._process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=environment,
            start_new_session=True,
        )
        assert self._reply(PATIENCE) == {"ready": True}
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        try:
            self._process.wait(20)
        finally:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process.stdout.close()

    def run(self, *arguments: object, patience: float = PATIENCE, **faults: object) -> Ended:
        """`pivot ARGUMENTS`; `faults` are the keywords of `trainer_server.Order`."""
        order = {"arguments": [str(argument) for argument in arguments], "patience": patience, **faults}
        self._process.stdin.write(json.dumps(order) + "\n")
        reply = self._reply(patience + 30)
        assert not reply["overdue"], f"the trainer hung: {reply['said'][-2000:]}"
        return Ended(reply["code"], reply["said"])

    def train(self, config: Config, out: Path, *options: str, **faults: object) -> Ended:
        out.parent.mkdir(parents=True, exist_ok=True)
        file = out.with_suffix(".json")
        file.write_text(json.dumps(to_dict(config)))
        return self.run("train", "--config", file, "--out", out, "--no-report", *options, **faults)

    def resume(self, out: Path, **faults: object) -> Ended:
        return self.run("train", "--resume", out, "--no-report", point_step=1, **faults)

    def _reply(self, patience: float):
        ready, _, _ = select.select([self._process.stdout], [], [], patience)
        assert ready, "the trainers' server does not answer"
        return json.loads(self._process.stdout.readline())


def repeatable_rows(run: Path) -> list[dict]:
    """The rows of metrics.jsonl without what differs from run to run."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "memory/"))} for row in rows]


def differences(run: Path, other: Path) -> list[str]:
    """What two finished runs do not share, bit for bit: metrics, rollouts, weights, optimizer, buffer, state."""
    found = []
    if repeatable_rows(run) != repeatable_rows(other):
        found.append("metrics.jsonl")
    texts = [(path / "rollouts.jsonl") for path in (run, other)]
    if texts[0].exists() and texts[0].read_bytes() != texts[1].read_bytes():
        found.append("rollouts.jsonl")
    ends = [newest_checkpoint(path) for path in (run, other)]
    if ends[0].name != ends[1].name:
        return [*found, f"{ends[0].name} against {ends[1].name}"]
    names = [sorted(p.relative_to(end).as_posix() for p in end.rglob("*.safetensors")) for end in ends]
    if names[0] != names[1]:
        found.append(f"{names[0]} against {names[1]}")
    found += [name for name in names[0] if not _same_arrays(ends[0] / name, ends[1] / name)]
    if (ends[0] / "state.json").read_bytes() != (ends[1] / "state.json").read_bytes():
        found.append("state.json")
    return found


def newest_checkpoint(run: Path) -> Path:
    steps = [path for path in (run / "checkpoints").iterdir() if path.name.removeprefix("step-").isdigit()]
    return max(steps, key=lambda path: int(path.name.removeprefix("step-")))


def _same_arrays(path: Path, other: Path) -> bool:
    """By their bytes: NaN equals NaN, and the order of a header does not matter."""
    a, b = load_file(path), load_file(other)
    return a.keys() == b.keys() and all(
        a[name].dtype == b[name].dtype and a[name].tobytes() == b[name].tobytes() for name in a
    )


def wait_until(condition, patience: float = PATIENCE, what: str = "it") -> None:
    """Wait for a condition, not for a time; `patience` only ends what will never happen."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {patience:g} s"
        time.sleep(0.02)
