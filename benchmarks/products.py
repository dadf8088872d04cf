"""Products with the weights of Qwen2.5-VL-3B in float32: oneDNN (`pivot.models.products`) against torch's default.

python -m benchmarks.products [--threads 2] [--rounds 7]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F

from benchmarks.turns import machine
from pivot.method.products import product

WEIGHTS = {"head": (151936, 2048), "up": (11008, 2048), "down": (2048, 11008), "query": (2048, 2048)}
"""Rows and columns."""
ROWS = (5, 20, 40, 128, 512, 2048)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{machine()}; {args.threads} thread(s), {args.rounds} rounds; GFLOP/s of both and their ratio")
    for name, shape in WEIGHTS.items():
        weight = torch.randn(shape)
        for num_rows in ROWS:
            if num_rows * weight.shape[0] > 2**26:  # more logits than this project holds at once
                continue
            x = torch.randn(num_rows, weight.shape[1])
            works = (lambda: F.linear(x, weight), lambda: product(x, weight))  # noqa: B023 - called in this round
            pairs = [tuple(_seconds(work) for work in works) for _ in range(args.rounds + 1)][1:]
            speeds = [2e-9 * num_rows * weight.numel() / median(pair[i] for pair in pairs) for i in range(2)]
            ratio = median(default / ours for default, ours in pairs)
            print(f"{name:6} {num_rows:5} rows  {speeds[0]:6.0f} {speeds[1]:6.0f}  {ratio:.2f}x")
    return 0


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
