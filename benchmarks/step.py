"""A whole training step against TRL's, on the same model, prompts, images and number and length of responses.

    python -m benchmarks.step [--case natural] [--rounds 7] [--threads 1] [--micro-batch 32 64]

16 prompts x 8 responses; `fixed`: 48 tokens each, `natural`: until the model ends its turn, 96 at most. TRL runs in
`.venv-trl` (`make .venv-trl/.ready`), with as many micro-batch sizes as are given: the fastest of them counts. Every
contender uses the same number of threads; this project scores nothing beside the rollout here.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks import contender
from benchmarks.cases import CASES
from benchmarks.turns import Contender, machine, middle, play, ratio
from benchmarks.world import write_for_peer

PEER = Path(".venv-trl/bin/python")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--case", choices=CASES, default="fixed")
    parser.add_argument("--methods", nargs="+", default=["dapo", "pivot"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--warmups", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--micro-batch", type=int, nargs="+", default=[32])
    args = parser.parse_args()
    if not PEER.exists():
        print("TRL is not installed here: run `make .venv-trl/.ready` first.", file=sys.stderr)
        return 2
    print(f"{machine()}; case {args.case}, {args.threads} thread(s) each, {args.rounds} rounds")
    with tempfile.TemporaryDirectory() as folder:
        work = write_for_peer(Path(folder))
        peers = [
            Contender(f"trl/{size}", peer_command(work, args.case, size, args.threads), args.threads)
            for size in args.micro_batch
        ]
        ours = [
            Contender(
                method,
                contender.command(method, args.case, args.threads, "train.overlap=false"),
                args.threads,
            )
            for method in args.methods
        ]
        turns = play([*peers, *ours], args.rounds, args.warmups)
    for name, found in turns.items():
        extra = f", {middle(found, 'tokens'):.0f} tokens sampled" if "tokens" in found[0] else ""
        replayed = f", {middle(found, 'replayed'):.0f} groups replayed" if found[0].get("replayed") else ""
        times = f"{middle(found, 'seconds'):6.2f} s a step, {middle(found, 'cpu_seconds'):6.2f} s of processor time"
        print(f"{name:8} {times}, {middle(found, 'groups'):.0f} groups trained{extra}{replayed}")
    peer = min((p.name for p in peers), key=lambda name: middle(turns[name], "seconds"))
    for method in args.methods:
        clock, cpu = ratio(turns, peer, method), ratio(turns, peer, method, "cpu_seconds")
        print(f"{peer} over {method}: {clock} on the clock, {cpu} of processor time")
    return 0


def peer_command(work: Path, case: str, micro_batch: int, threads: int) -> list[str]:
    options = ["--case", case, "--micro-batch", str(micro_batch), "--threads", str(threads)]
    return [str(PEER), "-m", "benchmarks.peer_trl", str(work), *options]


if __name__ == "__main__":
    sys.exit(main())
