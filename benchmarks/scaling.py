"""How a PIVOT step's time and memory grow with prompts, G, response length, image size and vocabulary.

    python -m benchmarks.scaling [--only length] [--steps 3]

Each point is a process of its own: the tiny model, responses of a fixed length, replay active, nothing beside the
rollout. Time is processor time of the fastest step; memory is the peak resident set beyond that of the process before
its first step. The exponent is the slope of a straight line through the last three points on logarithmic paper:
1 is proportional growth, and attention alone grows with exponent 2 in the length of a row.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.turns import machine
from benchmarks.world import Work, make_trainer

SWEEPS: dict[str, dict[int, Work]] = {
    "prompts": {n: Work(prompts=n, responses=4) for n in (4, 8, 16, 32)},
    "group": {n: Work(prompts=4, responses=n) for n in (4, 8, 16, 32)},
    "length": {n: Work(prompts=2, responses=4, tokens=n) for n in (64, 128, 256, 512, 1024, 2048)},
    "image": {n: Work(prompts=4, responses=4, image_side=n) for n in (84, 168, 336, 672)},
    "vocabulary": {n: Work(prompts=2, responses=4, vocabulary=n) for n in (640, 9_496, 37_984, 151_936)},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=SWEEPS, default=list(SWEEPS))
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(Work(**json.loads(args.measure)), args.steps)))
        return 0
    print(f"{machine()}; one thread, fastest of {args.steps} steps")
    for name in args.only:
        print(f"\n{name:>10} {'cpu seconds':>12} {'rollout':>9} {'update':>9} {'MiB':>8}")
        rows = {}
        for size, work in SWEEPS[name].items():
            rows[size] = row = in_subprocess(work, args.steps)
            cells = f"{row['seconds']:12.2f} {row['rollout']:9.2f} {row['update']:9.2f} {row['mib']:8.0f}"
            print(f"{size:10} {cells}", flush=True)
        grown = {key: exponent(rows, key) for key in ("seconds", "rollout", "update", "mib")}
        print("  exponent " + ", ".join(f"{key} {value:.2f}" for key, value in grown.items()))
    return 0


def in_subprocess(work: Work, steps: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.scaling", "--steps", str(steps)]
    command += ["--measure", json.dumps(asdict(work))]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(work: Work, steps: int) -> dict[str, float]:
    """Processor seconds of the fastest step with its main phases, and the peak memory of all of them."""
    settings = ("train.overlap=false", "train.threads=1", f"data.size={max(8, 3 * work.prompts)}")
    trainer = make_trainer("pivot", "fixed", *settings, work=work)
    trainer.clock._now = time.process_time
    before = _forget_peak()
    rows = []
    for _ in range(steps):
        trainer.clock.restart()
        trainer.step()
        rows.append(trainer.clock.metrics())
    best = min(rows, key=lambda row: row["time/step"])
    return {
        "seconds": best["time/step"],
        "rollout": best["time/rollout"],
        "update": best["time/update"],
        "mib": (_memory("VmHWM") - before) / 2**10,
    }


def exponent(rows: dict[int, dict[str, float]], key: str, last: int = 3) -> float:
    """Least squares through the last points of log(value) over log(size)."""
    points = [(math.log(size), math.log(max(row[key], 1e-9))) for size, row in rows.items()][-last:]
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    above = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return above / sum((x - mean_x) ** 2 for x, _ in points)


def _forget_peak() -> int:
    """Resident KiB now; from here on Linux counts the peak from zero."""
    Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def _memory(name: str) -> int:
    """A line of the process's status, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    sys.exit(main())
