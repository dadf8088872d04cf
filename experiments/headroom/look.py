"""`python -m experiments.headroom.look MODEL...`: which tokens of its responses a model reads off the image.

Visual support c and the share of the policy gradient by kind of token, for right and wrong responses to prompts of the
split `test`. A model is a run, a checkpoint or a model's folder; several are shown below each other, such as a start
and what was trained from it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from experiments.headroom.panels import prompt
from experiments.headroom.pretrain import MAX_TOKENS
from experiments.tiny_world.kinds import KINDS
from experiments.tiny_world.measure import GradedSampler, look
from pivot import recipes
from pivot.durable import write_bytes
from pivot.errors import UserError
from pivot.evaluation.target import find_target
from pivot.models.loading import load_policy
from pivot.report.tables import Column, Row, Table, to_markdown
from pivot.rewards.judge import VerifierJudge

RECIPE = "tiny-evidence"


def look_at(model: str, num_prompts: int) -> dict[str, Any]:
    """What `experiments.tiny_world.measure.look` finds in a model's responses to panels."""
    config = recipes.get(RECIPE)
    config = replace(config, rollout=replace(config.rollout, max_tokens=MAX_TOKENS))
    judge = VerifierJudge(config.reward.grader, config.reward.workers)
    try:
        sampler = GradedSampler(load_policy(model), config, judge)
        return look(sampler, [prompt("test", index) for index in range(num_prompts)])
    finally:
        judge.close()


def shares(kinds: Mapping[str, Mapping[str, Sequence[float]]]) -> list[Row]:
    """A row per verdict and kind: tokens, mean c, and the part of all that the gradient acts on, in per cent."""
    total = sum(weight for found in kinds.values() for _, _, weight in found.values())
    return [
        Row(f"{kind}, {verdict} responses", (int(tokens), support, 100 * weight / total), ranked=False)
        for verdict, found in kinds.items()
        for kind in KINDS
        if kind in found
        for tokens, support, weight in [found[kind]]
    ]


def table(name: str, found: Mapping[str, Any]) -> Table:
    columns = (
        Column("Tokens", best=None, form="d"),
        Column("c", best=None, form=".3f"),
        Column("Gradient, %", best=None, form=".1f"),
    )
    dependency = sum(found["dependency"]) / len(found["dependency"])
    caption = f"{name}: visual support c by kind of token, and the kind's share of sum(1 - p); V(y) is {dependency:.3f}"
    return Table("kinds", caption, "Kind", columns, tuple(shares(found["kinds"])))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.headroom.look", description=__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="a run, a checkpoint or a model's folder")
    parser.add_argument("--prompts", type=int, default=60, help="(%(default)s)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the numbers as JSON too")
    args = parser.parse_args(argv)
    if args.prompts < 1:
        parser.error(f"--prompts is {args.prompts}; expected 1 or more")
    torch.set_num_threads(1)
    try:
        found = {model: look_at(str(find_target(model).folder), args.prompts) for model in args.models}
    except UserError as mistake:
        print(mistake, file=sys.stderr)
        return 2
    for model, one in found.items():
        print(to_markdown(table(model, one)), flush=True)
    if args.out is not None:
        write_bytes(args.out, (json.dumps(found, indent=1) + "\n").encode())
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    sys.exit(main())
