"""What the methods cost over DAPO, for the same number of trained groups, and where each percent goes.

    python -m benchmarks.overhead [--rounds 12] [--methods vppo papo pivot]

The shipped tiny model, its own tasks and verifier, responses of natural length; replay is active and every candidate
is scored again. Dynamic sampling rolls out more groups than it keeps, and replayed prompts are kept more often, so
times are given for each trained group. `pivot` scores beside the rollout where a core is free; `pivot-plain` is the
same without it, and its phases say what each part costs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from statistics import median

from benchmarks import contender
from benchmarks.turns import Contender, Turn, machine, play

PHASES = ("rollout", "verify", "anchors", "score", "update", "other")
PLAIN = "-plain"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--methods", nargs="+", default=["vppo", "papo", "pivot", "pivot-plain"])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--warmups", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    print(f"{machine()}; {args.threads} thread(s) for decoding and products, {args.rounds} rounds")
    names = ["dapo", *args.methods]
    turns = play([_start(name, args.threads) for name in names], args.rounds, args.warmups)
    print(
        f"\n{'ms per trained group':20}"
        + "".join(f"{phase:>9}" for phase in PHASES)
        + f"{'clock':>9}{'cpu':>9}"
    )
    for name, found in turns.items():
        cells = [_per_group(found, f"time/{phase}") for phase in PHASES]
        cells += [_per_group(found, "seconds"), _per_group(found, "cpu_seconds")]
        sampled = sum(turn["sampled"] for turn in found) / sum(turn["groups"] for turn in found)
        print(
            f"{name:20}"
            + "".join(f"{1e3 * cell:9.1f}" for cell in cells)
            + f"   {sampled:.2f} sampled a trained"
        )
    print()
    for name in args.methods:
        clock, cpu = (_overhead(turns["dapo"], turns[name], key) for key in ("seconds", "cpu_seconds"))
        print(f"{name:12} over dapo: {clock} on the clock, {cpu} of processor time")
    plain = next((name for name in names if name.endswith(PLAIN)), None)
    if plain:
        base = _per_group(turns["dapo"], "seconds")
        parts = {
            p: _per_group(turns[plain], f"time/{p}") - _per_group(turns["dapo"], f"time/{p}") for p in PHASES
        }
        words = ", ".join(f"{phase} {100 * part / base:+.1f}%" for phase, part in parts.items())
        print(f"{plain}, phase by phase against dapo's step: {words}")
    for name in args.methods:
        if any(turn["replayed"] for turn in turns[name]):
            share = [turn["anchors"] / turn["groups"] for turn in turns[name]]
            print(f"{name}: {100 * median(share):.0f}% of the trained groups replayed with an anchor")
    return 0


def _start(name: str, threads: int) -> Contender:
    overlap = "false" if name.endswith(PLAIN) else "true"
    command = contender.command(name.removesuffix(PLAIN), "natural", threads, f"train.overlap={overlap}")
    return Contender(name, command, threads)


def _per_group(turns: Sequence[Turn], key: str) -> float:
    """Median over the rounds."""
    return median(turn.get(key, 0.0) / turn["groups"] for turn in turns)


def _overhead(base: Sequence[Turn], other: Sequence[Turn], key: str) -> str:
    """Median over the rounds of one method's time a group over the other's, and the middle half of them."""
    pairs = zip(base, other, strict=True)
    found = sorted(100 * ((b[key] / b["groups"]) / (a[key] / a["groups"]) - 1) for a, b in pairs)
    low, high = found[len(found) // 4], found[-1 - len(found) // 4]
    return f"{median(found):+.1f}% ({low:+.1f} to {high:+.1f})"


if __name__ == "__main__":
    sys.exit(main())
