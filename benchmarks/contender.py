"""This project's side of a comparison: one training step a turn.

python -m benchmarks.contender --method pivot --case natural --threads 1
"""

from __future__ import annotations

import argparse
import sys

import torch

from benchmarks.cases import CASES, Meter
from benchmarks.turns import serve
from benchmarks.world import make_trainer


def command(method: str, case: str, threads: int, *settings: str) -> list[str]:
    """How to start one."""
    options = ["--method", method, "--case", case, "--threads", str(threads)]
    return [sys.executable, "-m", "benchmarks.contender", *options, *settings]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--method", default="dapo")
    parser.add_argument("--case", choices=CASES, default="fixed")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("settings", nargs="*", help="as after --set")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    trainer = make_trainer(args.method, args.case, f"train.threads={args.threads}", *args.settings)

    meter = Meter(trainer.engine.policy.model)

    def step() -> dict[str, float]:
        trainer.clock.restart()
        outcome = trainer.step()
        phases = {k: v for k, v in trainer.clock.metrics().items() if not k.startswith("time/share_")}
        kept = outcome.selection.kept
        responses = [r for group in outcome.selection.sampled for r in group.responses]
        return {
            **phases,
            **meter.read(),
            "groups": len(kept),
            "sampled": len(outcome.selection.sampled),
            "replayed": sum(group.replayed for group in kept),
            "anchors": sum(group.anchor is not None for group in kept),
            "tokens": sum(len(response) for response in responses),
        }

    serve(step)
    trainer.judge.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
