"""`pivot attention --model A --model B --data D`: how much responses look at the image, layer by layer."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pivot.data import DataSpec
from pivot.errors import UserError
from pivot.tiny import procedural
from pivot.types import Prompt

if TYPE_CHECKING:
    from pivot.evaluate.attention import ImageAttention

PROCEDURAL = "tiny"
DEFAULT_SPLIT = "test"
OWN = "default: the run's own, else see --recipe"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        action="append",
        required=True,
        dest="models",
        metavar="MODEL",
        help="`tiny`, a run's folder, a model folder or a hub id; repeat it for several in one plot",
    )
    parser.add_argument(
        "--data",
        required=True,
        metavar="NAME",
        help="`tiny` or `tiny-SPLIT` (tiny-ood), a known set, a hub id, or a file",
    )
    parser.add_argument("--split", help="which split; the set's usual one if not given")
    parser.add_argument("--limit", type=int, default=64, metavar="N", help="prompts (default: 64)")
    parser.add_argument("--samples", type=int, default=1, metavar="K", help="responses a prompt (default: 1)")
    parser.add_argument(
        "--recipe",
        metavar="NAME",
        help="image limits, response limit and dtype for models that no run made; default: as the runs given beside "
        "them, else as the paper does",
    )
    parser.add_argument("--max-tokens", type=int, metavar="N", help=f"longest response; {OWN}")
    parser.add_argument("--temperature", type=float, default=1.0, help="of sampling (default: 1.0)")
    parser.add_argument("--seed", type=int, default=0, help="fixes the responses (default: 0)")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        help=f"of the weights; {OWN}, else the model's files",
    )
    parser.add_argument("--min-pixels", type=int, metavar="N", help=f"smallest image area; {OWN}")
    parser.add_argument("--max-pixels", type=int, metavar="N", help=f"largest image area; {OWN}")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("attention"),
        metavar="DIR",
        help="where to write (default: attention)",
    )


def run(args: argparse.Namespace) -> int:
    _check(args)
    prompts = _with_images(load_prompts(args.data, args.split, args.limit), args.data)
    # Heavy rooms wait until the data is known to be good.
    from pivot.report.attention import AttentionStudy, write_attention

    data = args.data if args.split is None else f"{args.data}, {args.split}"
    for path in write_attention(AttentionStudy(data, args.samples, _measure(args, prompts)), args.out):
        print(path)
    return 0


def _measure(args: argparse.Namespace, prompts: list[Prompt]) -> list[ImageAttention]:
    """All models, each under conditions that are said first."""
    from pivot.evaluate.attention import measure
    from pivot.evaluate.conditions import Asked, choose_conditions
    from pivot.evaluate.target import find_target
    from pivot.models.loading import ModelOptions, load_policy
    from pivot.sampling import Sampling

    targets = [find_target(name) for name in args.models]
    limits = (args.min_pixels, args.max_pixels)
    asked = Asked(args.recipe, *limits, max_tokens=args.max_tokens, dtype=args.dtype)
    conditions = list(zip(targets, choose_conditions(targets, asked), strict=True))
    for target, chosen in conditions:
        print(f"{target.name}: {chosen.describe(graded=False)}")
    measured = []
    for target, chosen in conditions:
        low, high = chosen.limits.value
        options = ModelOptions(dtype=chosen.dtype.value, min_pixels=low, max_pixels=high)
        policy = load_policy(str(target.folder), options)
        sampling = Sampling(temperature=args.temperature, max_tokens=chosen.max_tokens.value)
        found = measure(
            policy, prompts, target.name, num_samples=args.samples, sampling=sampling, seed=args.seed
        )
        layers = "  ".join(f"{mass:.1%}" for mass in found.mean_N)
        print(f"{target.name}: {layers}  ({found.num_tokens_P.mean():.0f} tokens a response)")
        measured.append(found)
    return measured


def _check(args: argparse.Namespace) -> None:
    for option, value in (("--limit", args.limit), ("--samples", args.samples)):
        if value < 1:
            raise UserError(f"{option} is {value}; it must be at least 1.")
    repeated = sorted({name for name in args.models if args.models.count(name) > 1})
    if repeated:
        raise UserError(f"--model {repeated[0]} is given twice; name each model once.")


def load_prompts(name: str, split: str | None, limit: int) -> list[Prompt]:
    """The first prompts of a set: procedural ones by `tiny` or `tiny-SPLIT`, all others by their data set."""
    family, _, named = name.partition("-")
    if family == PROCEDURAL and (not named or named in procedural.SPLITS):
        return list(procedural.dataset(split or named or DEFAULT_SPLIT, limit))
    from pivot.evaluate import benchmarks

    return benchmarks.load(DataSpec(name, split=split, limit=limit)).usable()


def _with_images(prompts: list[Prompt], data: str) -> list[Prompt]:
    seeing = [prompt for prompt in prompts if prompt.images]
    if not seeing:
        raise UserError(f"none of the {len(prompts)} prompts of {data} has an image; give a set with images.")
    if len(seeing) < len(prompts):
        print(
            f"pivot attention: {len(prompts) - len(seeing)} prompts without images left out", file=sys.stderr
        )
    return seeing
