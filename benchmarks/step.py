"""A whole training step against TRL's, on the same model, prompts, images and number and length of responses.

    python -m benchmarks.step [--case natural] [--rounds 7] [--threads 1] [--micro-batch 32 64]
    python -m benchmarks.step --case slice --threads 2 --data train.parquet --tokenizer FOLDER
                              [--set train.kept_activations=4]

The tiny model, 16 prompts x 8 responses; `fixed`: 48 tokens each, `natural`: until the model ends its turn, 96 at most.
A slice of Qwen2.5-VL-3B (benchmarks/slice.py), 4 prompts x 5 responses of 128 tokens, or 512 (`slice-512`): contenders
run one after another, because two do not fit into 24 GB. TRL runs in `.venv-trl` (`make .venv-trl/.ready`), with as
many micro-batch sizes as are given, of which the fastest counts. Every contender uses the same number of threads; this
project scores nothing beside the rollout here.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import contender
from benchmarks.cases import CASES
from benchmarks.slice import add_options, write_for
from benchmarks.turns import Contender, Turn, machine, middle, play, play_apart, ratio
from benchmarks.world import write_for_peer

PEER = Path(".venv-trl/bin/python")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--case", choices=CASES, default="fixed")
    parser.add_argument("--methods", nargs="+", default=["dapo", "pivot"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--warmups", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--micro-batch", type=int, nargs="*", default=[32], help="of TRL; none: without TRL")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of this project's side"
    )
    add_options(parser)
    args = parser.parse_args()
    if args.micro_batch and not PEER.exists():
        print("TRL is not installed here: run `make .venv-trl/.ready` first.", file=sys.stderr)
        return 2
    print(f"{machine()}; case {args.case}, {args.threads} thread(s) each, {args.rounds} rounds")
    apart = args.case.startswith("slice")
    with tempfile.TemporaryDirectory() as folder:
        settings = ["train.overlap=false", *write_for(args.case, Path(folder), args)]
        work = write_for_peer(Path(folder), args.case, settings)
        settings += args.set
        commands = {f"trl/{n}": peer_command(work, args.case, n, args.threads) for n in args.micro_batch}
        peers = list(commands)
        commands |= {m: contender.command(m, args.case, args.threads, *settings) for m in args.methods}
        contenders = [Contender(name, c, args.threads, begin=not apart) for name, c in commands.items()]
        turns = (play_apart if apart else play)(contenders, args.rounds, args.warmups)
    for name, found in turns.items():
        print(f"{name:8} {describe(found)}")
    if not peers:
        return 0
    peer = min(peers, key=lambda name: middle(turns[name], "seconds"))
    for method in args.methods:
        clock, cpu = ratio(turns, peer, method), ratio(turns, peer, method, "cpu_seconds")
        print(f"{peer} over {method}: {clock} on the clock, {cpu} of processor time")
    return 0


def describe(found: Sequence[Turn]) -> str:
    """The medians of a contender's turns."""
    words = [
        f"{middle(found, 'seconds'):6.2f} s per step",
        f"{middle(found, 'cpu_seconds'):6.2f} s of processor time",
    ]
    words.append(f"{middle(found, 'groups'):.0f} groups trained")
    phases = {key.removeprefix("time/"): middle(found, key) for key in found[0] if key.startswith("time/")}
    words += [f"{name} {seconds:.2f} s" for name, seconds in phases.items() if seconds >= 0.005]
    counts = {"tokens": "tokens sampled", "replayed": "groups replayed", "computed_tokens": "tokens computed"}
    words += [f"{middle(found, key):.0f} {what}" for key, what in counts.items() if found[0].get(key)]
    return ", ".join([*words, f"peak memory {middle(found, 'peak_gib'):.2f} GiB"])


def peer_command(work: Path, case: str, micro_batch: int, threads: int) -> list[str]:
    options = ["--case", case, "--micro-batch", str(micro_batch), "--threads", str(threads)]
    return [str(PEER), "-m", "benchmarks.peer_trl", str(work), *options]


if __name__ == "__main__":
    sys.exit(main())
