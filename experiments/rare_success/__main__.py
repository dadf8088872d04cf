"""`python -m experiments.rare_success`: makes the training sets, and collects finished runs as small files."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from pivot.durable import write_bytes
from pivot.errors import UserError

HERE = Path(__file__).resolve().parent
WORK = Path("runs") / "rare_success"
"""The plan names the sets in this folder, relative to where it is run."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.rare_success", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    sets = commands.add_parser("sets", help="write the training sets and the new prompts of their kind")
    sets.add_argument("--start", default="tiny-hard", help="the checkpoint that success rates are of")
    sets.add_argument("--rates", help="in per cent, such as 20,10 (default: all, from the most frequent on)")
    args = parser.parse_args(argv)
    try:
        return make(args.start, args.rates)
    except UserError as mistake:
        print(mistake, file=sys.stderr)
        return 2


def make(start: str, rates: str | None) -> int:
    """Write the sets one by one; what is recorded of each is in sets/START.json."""
    from experiments.rare_success.sets import SetPlan, make_sets, sampler_of

    plan = SetPlan(start=start)
    if rates is not None:
        wanted = {int(rate) for rate in rates.split(",")}
        plan = replace(plan, candidates={rate: n for rate, n in plan.candidates.items() if rate in wanted})
    folder = WORK / "sets"
    record = folder / f"{start}.json"
    for name, found in make_sets(plan, folder, sampler_of(plan)):
        known = json.loads(record.read_bytes()) if record.exists() else {}
        write_bytes(record, as_lines({**known, name: found}))
        print(f"{name}: {found['prompts']} prompts, {100 * found['success_rate']:.1f}% right", flush=True)
    return 0


def as_lines(value: dict) -> bytes:
    """JSON with one line per entry: small, and a diff of two versions is readable."""
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(part)}" for key, part in value.items())
    return f"{{\n{lines}\n}}\n".encode()


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    sys.exit(main(sys.argv[1:]))
