"""How near scoring and training come to what the machine's matrix products can do.

    python -m benchmarks.limit [--rounds 7]
    python -m benchmarks.limit --case slice --threads 2 --rounds 2 --data train.parquet --tokenizer FOLDER

FLOPs of a corrupted-image pass and of an update (forward and backward), counted by torch, over their time; against a
product of two 2,048 x 2,048 matrices in float32 by the same library (`method/products.py`), in turns and on the same
threads. The tiny model with 16 prompts x 8 responses, or a slice of Qwen2.5-VL-3B (benchmarks/slice.py) with 4 x 5.
Recomputed activations count as work.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import torch
from torch.utils.flop_counter import FlopCounterMode, register_flop_formula

from benchmarks.cases import CASES
from benchmarks.slice import add_options, write_for
from benchmarks.turns import machine
from benchmarks.world import make_trainer
from pivot.engines.base import ScoreRequest
from pivot.method import allocate_advantage
from pivot.method.products import product
from pivot.training.batch import minibatches, units_of

SIZE = 2048


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--case", choices=CASES, default="fixed")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of the run")
    add_options(parser)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        settings = [*write_for(args.case, Path(folder), args), f"train.threads={args.threads}", *args.set]
        works = {"matrix product": _product(), **_passes(args.case, settings)}
    flops = {name: _count(work) for name, work in works.items()}
    speeds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(args.rounds):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            speeds[name].append(flops[name] / (time.perf_counter() - start))
    print(f"{machine()}; {args.threads} thread(s), {args.rounds} rounds")
    for name, found in speeds.items():
        shares = sorted(a / b for a, b in zip(found, speeds["matrix product"], strict=True))
        share = f"{100 * median(shares):.0f}% ({100 * shares[0]:.0f}-{100 * shares[-1]:.0f})"
        print(
            f"{name:15} {flops[name] / 1e9:6.1f} GFLOP  {median(found) / 1e9:6.1f} GFLOP/s  {share} of the product"
        )
    return 0


def _product() -> Callable[[], object]:
    a, b = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
    return lambda: product(a, b)


def _passes(case: str, settings: Sequence[str]) -> dict[str, Callable[[], object]]:
    """One scored batch that is scored and trained on again and again."""
    trainer = make_trainer("vppo", case, "train.overlap=false", *settings)
    selection = trainer._open(1)
    groups = trainer._sample(selection.draw(), selection)
    trainer._reward(groups)
    selection.filter(groups)
    groups, batch = trainer._batch(selection.kept, 1)
    batch, _ = allocate_advantage(trainer.method, trainer._score(groups, batch, 1))
    engine, units = trainer.engine, units_of(groups)

    def score() -> None:
        engine.policy.forget_features()
        engine.score(ScoreRequest(units, 1, "corrupted"))

    def update() -> None:
        for minibatch, rows in minibatches(groups, batch):
            engine.update(minibatch, rows, 1e-7)

    return {"scoring": score, "training": update}


@register_flop_formula(torch.ops.mkldnn._linear_pointwise)
def _linear_flops(x_shape: Sequence[int], weight_shape: Sequence[int], *_: object, **__: object) -> int:
    """models/products.py calls it, and torch does not count it."""
    return 2 * math.prod(x_shape) * weight_shape[0]


def _count(work: Callable[[], object]) -> float:
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


if __name__ == "__main__":
    sys.exit(main())
