"""Seconds from typing a command to its answer: the first sampled token of a training run, or a mistake's sentence.

    python -m benchmarks.startup [--rounds 5]

Each is a process of its own, in turns; the token's process is ended as soon as it has been drawn.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.turns import machine

PLUGIN = """
import os
from pivot.sampling.decoder import Decoder
draw = Decoder._draw
def first(self, hidden_ND):
    draw(self, hidden_ND)
    os._exit(77)
Decoder._draw = first
"""
MISTAKES = (["--recipe", "tinny"], ["--set", "train.step=3"], ["--data", "no-such-file.jsonl"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print(f"{machine()}; {args.rounds} rounds")
    with tempfile.TemporaryDirectory() as folder:
        plugin = Path(folder, "first_token.py")
        plugin.write_text(PLUGIN)
        cases = {"first sampled token": ["--recipe", "tiny", "--plugin", str(plugin)]}
        cases |= {" ".join(mistake): mistake for mistake in MISTAKES}
        seconds: dict[str, list[float]] = {name: [] for name in cases}
        for number in range(args.rounds):
            for name, options in cases.items():
                expected = 77 if name == "first sampled token" else 2
                seconds[name].append(_run([*options, "--out", str(Path(folder, f"run-{number}"))], expected))
        for name, found in seconds.items():
            print(f"{name:32} {median(found):5.2f} s ({min(found):.2f}-{max(found):.2f})")


def _run(options: list[str], expected: int) -> float:
    command = [sys.executable, "-m", "pivot", "train", *options]
    since = time.perf_counter()
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
    )
    spent = time.perf_counter() - since
    if done.returncode != expected:
        raise SystemExit(
            f"{' '.join(command)} ended with code {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return spent


if __name__ == "__main__":
    main()
