"""`pivot eval --model A [--model B ...] --benchmarks geometry3k,tiny-test`: accuracy@k, resumable."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from pivot import recipes
from pivot.cli import eval_tables
from pivot.errors import UserError
from pivot.evaluate.conditions import Asked, choose_conditions
from pivot.evaluate.judging import SECOND_LOOK, BenchmarkJudge
from pivot.evaluate.runner import Evaluator
from pivot.evaluate.sets import EvaluationSet, SetOptions, expand, load_sets
from pivot.evaluate.settings import EvaluationSettings, evaluation_request
from pivot.evaluate.summary import add_scores
from pivot.evaluate.target import Target, find_target
from pivot.models.loading import ModelOptions, load_policy
from pivot.runs.card import write_card
from pivot.sampling import NativeSampler, Sampler, Sampling

INTERRUPTED = 130
OWN = "default: the run's own, else see --recipe"
Entry = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", action="append", required=True, metavar="NAME",
        help="`tiny`, a run's folder or one of its checkpoints, a Hugging Face folder, a hub id; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--benchmarks", required=True, metavar="A,B",
        help="names of `pivot benchmarks`, paper, paper-9, ood, tiny-test, tiny-ood, tiny-validation, or a file",
    )  # fmt: skip
    parser.add_argument("--samples", type=int, default=8, help="responses a prompt (accuracy@8)")
    parser.add_argument("--limit", type=int, help="the first N rows of each set")
    parser.add_argument(
        "--blank", action="store_true", help="also with blank images: how much is language prior"
    )
    parser.add_argument(
        "--recipe", metavar="NAME",
        help=f"how models that no run made are evaluated: {', '.join(recipes.names())} (image limits, grader, response "
        "limit, dtype); default: as the runs given beside them, else as the paper does",
    )  # fmt: skip
    parser.add_argument("--grader", choices=list(SECOND_LOOK), help=OWN)
    parser.add_argument(
        "--path", action="append", default=[], metavar="NAME=FILE", help="a local copy of a set"
    )
    parser.add_argument(
        "--papo-eval", action="store_true", help="take the benchmarks from the PAPO-Eval bundle"
    )
    parser.add_argument(
        "--strict", action="store_true", help="refuse a number of rows other than the known one"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="default: RUN/eval for a run, else eval/MODEL"
    )
    parser.add_argument(
        "--engine", choices=("embedded", "vllm"), default="embedded", help="what draws the samples"
    )
    parser.add_argument("--max-tokens", type=int, metavar="N", help=OWN)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--min-pixels", type=int, metavar="N", help=f"smallest image area; {OWN}")
    parser.add_argument("--max-pixels", type=int, metavar="N", help=f"largest image area; {OWN}")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help=f"{OWN}, else the model's files")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    console = Console()
    targets = [find_target(name) for name in dict.fromkeys(args.model)]
    settings = settings_for(targets, args)
    names = expand([name.strip() for name in args.benchmarks.split(",") if name.strip()])
    sets = load_sets(names, SetOptions(_paths(args.path, names), args.limit, args.strict, args.papo_eval))
    for note in (note for chosen in sets for note in chosen.notes):
        print(f"pivot eval: {note}", file=sys.stderr)
    entries: dict[str, list[Entry]] = {}
    try:
        for target, out in zip(targets, folders(targets, args.out), strict=True):
            entries[target.name] = _evaluate(target, sets, settings[target.name], out, args)
            console.print(eval_tables.screen_table(target.name, entries[target.name]))
            console.print(f"samples and scores: {out}", highlight=False, soft_wrap=True)
    except KeyboardInterrupt:
        print("pivot eval: stopped; the same command goes on where it stopped", file=sys.stderr)
        return INTERRUPTED
    if len(targets) > 1:
        folder = args.out or Path("eval")
        for text in eval_tables.write_comparison(entries, folder):
            print(f"\n{text}", end="")
        console.print(f"as Markdown, LaTeX and CSV: {folder}", highlight=False, soft_wrap=True)
    return 0


def settings_for(targets: list[Target], args: argparse.Namespace) -> dict[str, EvaluationSettings]:
    """Model -> how it is evaluated; says so, and where each value comes from."""
    if args.samples < 1:
        raise UserError(f"--samples is {args.samples}; it must be at least 1")
    asked = Asked(args.recipe, args.min_pixels, args.max_pixels, args.grader, args.max_tokens, args.dtype)
    found = {}
    for target, chosen in zip(targets, choose_conditions(targets, asked), strict=True):
        print(f"{target.name}: {chosen.describe()}")
        sampling = Sampling(args.temperature, max_tokens=chosen.max_tokens.value)
        request = evaluation_request(args.samples, sampling, args.seed)
        found[target.name] = EvaluationSettings(
            request, chosen.grader.value, args.engine, chosen.dtype.value, *chosen.limits.value
        )
    return found


def folders(targets: list[Target], out: Path | None) -> list[Path]:
    """Where each model's results go; models of one name get their whole paths."""
    titles = [target.title for target in targets]
    slugs = [
        target.name.strip("./").replace("/", "--") if titles.count(target.title) > 1 else target.title
        for target in targets
    ]
    if out is not None:
        return [out if len(targets) == 1 else out / slug for slug in slugs]
    return [
        Path("eval") / slug if t.run is None else t.run / "eval"
        for t, slug in zip(targets, slugs, strict=True)
    ]


def _evaluate(
    target: Target,
    sets: list[EvaluationSet],
    settings: EvaluationSettings,
    out: Path,
    args: argparse.Namespace,
) -> list[Entry]:
    """All entries of one model; each is in scores.json as soon as it is finished."""
    entries: list[Entry] = []
    with ExitStack() as stack:
        judge = stack.enter_context(BenchmarkJudge(settings.grader))
        progress = stack.enter_context(_progress(args.quiet))

        @cache
        def sampler() -> Sampler:
            found = _open_sampler(target, settings, args.device)
            stack.callback(found.close)
            return found

        evaluator = Evaluator(target, sampler, judge, out, _track(progress))
        for chosen in sets:
            for blank in (False, True) if args.blank else (False,):
                request = replace(settings.request, blank=blank)
                found = evaluator.evaluate(chosen, replace(settings, request=request))
                entries.append(found | {"limit": args.limit})
                add_scores(out / "scores.json", entries[-1:])
    if target.run is not None and target.config is not None and out == target.run / "eval":
        write_card(target.run, target.config)
    return entries


def _open_sampler(target: Target, settings: EvaluationSettings, device: str) -> Sampler:
    options = ModelOptions(
        dtype=settings.dtype, device=device, min_pixels=settings.min_pixels, max_pixels=settings.max_pixels
    )
    if settings.engine == "vllm":
        from pivot.sampling.vllm_sampler import VllmSampler

        return VllmSampler(target.folder, options)
    return NativeSampler(load_policy(str(target.folder), options))


def _progress(quiet: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=quiet,
    )


def _track(progress: Progress) -> Callable[[Iterable[Any], str, int, int], Iterator[Any]]:
    def track(items: Iterable[Any], description: str, done: int, total: int) -> Iterator[Any]:
        task = progress.add_task(description, completed=done, total=total)
        for item in items:
            yield item
            progress.advance(task)

    return track


def _paths(given: list[str], names: list[str]) -> dict[str, str]:
    """NAME=FILE for each set; a single set needs no name."""
    if len(names) == 1 and len(given) == 1 and "=" not in given[0]:
        return {names[0]: given[0]}
    paths = {}
    for pair in given:
        name, equals, path = pair.partition("=")
        if not (equals and name and path):
            raise UserError(f"--path is {pair!r}; expected NAME=FILE, such as geometry3k=test.parquet")
        paths[name] = path
    return paths
