"""`pivot attention --model A --model B --data D`: attention of responses to image tokens, layer by layer."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from pivot.cli import early
from pivot.cli.options import add_data_settings, add_model_settings, add_plugins, check_numbers
from pivot.errors import UserError
from pivot.terminal import printable
from pivot.types import Prompt

if TYPE_CHECKING:
    from pivot.evaluation.attention import ImageAttention
    from pivot.evaluation.target import Target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", action="append", required=True, dest="models", metavar="NAME",
        help="`tiny`, a run's folder, a Hugging Face folder, or a hub id; repeat it to plot several models",
    )  # fmt: skip
    parser.add_argument(
        "--data", required=True, metavar="NAME",
        help="`tiny`, `tiny-SPLIT` (such as tiny-ood), a benchmark or training set, a hub id, or a file",
    )  # fmt: skip
    add_data_settings(parser)
    parser.add_argument("--split", help="split of the data set (default: the set's usual one)")
    parser.add_argument("--limit", type=int, default=64, metavar="N", help="number of prompts (default: 64)")
    parser.add_argument(
        "--samples", type=int, default=1, metavar="K", help="responses per prompt (default: 1)"
    )
    parser.add_argument("--temperature", type=float, default=1.0, help="sampling temperature (default: 1.0)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the responses (default: 0)")
    add_model_settings(parser)
    add_plugins(parser)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("attention"),
        metavar="DIR",
        help="output folder (default: attention)",
    )


def check(args: argparse.Namespace) -> None:
    """Check names, paths and numbers before anything heavy is imported."""
    check_numbers(args)
    repeated = sorted({name for name in args.models if args.models.count(name) > 1})
    if repeated:
        raise UserError(f"--model {repeated[0]} is given twice; name each model once.")
    early.check_evaluation(args, args.models)
    early.check_data(args.data, None)


def run(args: argparse.Namespace) -> int:
    prompts = _with_images(_load_prompts(args), args.data)
    # torch and matplotlib are imported once the data is known to be usable.
    from pivot.report.attention import AttentionStudy, write_attention

    data = args.data if args.split is None else f"{args.data}, {args.split}"
    for path in write_attention(AttentionStudy(data, args.samples, _measure(args, prompts)), args.out):
        print(path)
    return 0


def _measure(args: argparse.Namespace, prompts: list[Prompt]) -> list[ImageAttention]:
    """Measure every model; prints the settings of all of them first."""
    from pivot.evaluation.target import leased_target

    with ExitStack() as stack:
        targets = [stack.enter_context(leased_target(name)) for name in args.models]
        return _measure_targets(targets, args, prompts)


def _measure_targets(
    targets: list[Target], args: argparse.Namespace, prompts: list[Prompt]
) -> list[ImageAttention]:
    from pivot.evaluation.attention import measure
    from pivot.evaluation.target import GivenOptions, choose_conditions
    from pivot.models.loading import ModelOptions, load_policy
    from pivot.sampling import Sampling

    limits = (args.min_pixels, args.max_pixels)
    given = GivenOptions(
        args.recipe,
        *limits,
        max_tokens=args.max_tokens,
        dtype=args.dtype,
        system=args.system,
        template=args.template,
    )
    conditions = list(zip(targets, choose_conditions(targets, given), strict=True))
    for target, chosen in conditions:
        print(f"{target.name}: {chosen.describe(graded=False)}")
    measured = []
    for target, chosen in conditions:
        low, high = chosen.limits.value
        options = ModelOptions(dtype=chosen.dtype.value, min_pixels=low, max_pixels=high)
        policy = load_policy(str(target.folder), options)
        sampling = Sampling(temperature=args.temperature, max_tokens=chosen.max_tokens.value)
        asked = [chosen.prompt.value.style.apply(prompt) for prompt in prompts]
        found = measure(
            policy, asked, target.name, num_samples=args.samples, sampling=sampling, seed=args.seed
        )
        layers = "  ".join(f"{mass:.1%}" for mass in found.mean_N)
        print(f"{target.name}: {layers}  ({found.num_tokens_P.mean():.0f} tokens per response)")
        measured.append(found)
    return measured


def _load_prompts(args: argparse.Namespace) -> list[Prompt]:
    """The first prompts of a set; says what is not used."""
    from pivot.cli.configuring import data_settings
    from pivot.evaluation.sets import SetOptions, read_set

    data = read_set(args.data, SetOptions({}, args.limit, split=args.split, data=data_settings(args)))
    if data.skipped and data.prompts:
        print(f"pivot attention: {printable(data.summary())}", file=sys.stderr)
    return data.usable()


def _with_images(prompts: list[Prompt], data: str) -> list[Prompt]:
    with_images = [prompt for prompt in prompts if prompt.images]
    if not with_images:
        raise UserError(f"none of the {len(prompts)} prompts of {data} has an image; give a set with images.")
    if len(with_images) < len(prompts):
        print(
            f"pivot attention: {len(prompts) - len(with_images)} prompts without images skipped",
            file=sys.stderr,
        )
    return with_images
