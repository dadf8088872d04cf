"""What `pivot eval` and `pivot.evaluate` do: settings, sets and folders of each model, and its scores."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from pivot.cli import eval_tables
from pivot.cli.configuring import data_settings
from pivot.cli.eval import NO_SET
from pivot.cli.options import check_numbers
from pivot.console import Console
from pivot.errors import UserError
from pivot.evaluation.matching import BenchmarkJudge
from pivot.evaluation.runner import Evaluator
from pivot.evaluation.sampling import evaluation_request
from pivot.evaluation.scoring import add_scores
from pivot.evaluation.sets import EvaluationSet, SetOptions, expand, load_sets
from pivot.evaluation.settings import EvaluationSettings
from pivot.evaluation.target import GivenOptions, Target, choose_conditions, leased_target
from pivot.models.loading import ModelOptions, check_folder, load_policy, pick_device
from pivot.runs.card import write_card
from pivot.sampling import NativeSampler, Sampler, Sampling, choose_sampler

INTERRUPTED = 130
Entry = dict[str, Any]


def run(args: argparse.Namespace) -> int:
    console = Console()
    with ExitStack() as stack:
        # Leased before they are looked at: a training run deletes old checkpoints.
        targets = [stack.enter_context(leased_target(name)) for name in dict.fromkeys(args.model)]
        return _evaluate_all(targets, args, console)


def _evaluate_all(targets: list[Target], args: argparse.Namespace, console: Console) -> int:
    settings = settings_for(targets, args)
    sets = chosen_sets(args)
    for note in (note for chosen in sets for note in chosen.notes):
        print(f"pivot eval: {note}", file=sys.stderr)
    entries: dict[str, list[Entry]] = {}
    try:
        for target, out in zip(targets, folders(targets, args.out), strict=True):
            entries[target.name] = evaluate_target(target, sets, settings[target.name], out, args)
            console.print(eval_tables.terminal_table(target.name, entries[target.name]))
            console.print(f"samples and scores: {out}", soft_wrap=True)
    except KeyboardInterrupt:
        print("pivot eval: stopped; run the same command again to continue", file=sys.stderr)
        return INTERRUPTED
    if len(targets) > 1:
        folder = args.out or Path("eval")
        for text in eval_tables.write_comparison(entries, folder):
            print(f"\n{text}", end="")
        console.print(f"Markdown, LaTeX and CSV: {folder}", soft_wrap=True)
    return 0


def chosen_sets(args: argparse.Namespace) -> list[EvaluationSet]:
    """The sets that --benchmarks and --data name."""
    names = expand([*(name.strip() for name in args.benchmarks.split(",") if name.strip()), *args.data])
    if not names:
        raise UserError(NO_SET)
    paths = _paths(args.path, names)
    how = SetOptions(paths, args.limit, args.strict, args.papo_eval, args.split, data_settings(args))
    return load_sets(names, how)


def settings_for(
    targets: list[Target], args: argparse.Namespace, show: Callable[[str], None] = print
) -> dict[str, EvaluationSettings]:
    """Model -> its settings; shows them with their sources."""
    check_numbers(args)
    asked = GivenOptions(
        args.recipe, args.min_pixels, args.max_pixels, args.grader, args.max_tokens, args.dtype,
        args.system, args.template, args.answer,
    )  # fmt: skip
    wanted = "native" if args.sampler == "embedded" else args.sampler
    sampler = choose_sampler(wanted, pick_device(args.device))
    found = {}
    for target, chosen in zip(targets, choose_conditions(targets, asked), strict=True):
        show(f"{target.name}: {chosen.describe()}")
        sampling = Sampling(args.temperature, max_tokens=chosen.max_tokens.value)
        request = evaluation_request(args.samples, sampling, args.seed)
        found[target.name] = EvaluationSettings(
            request,
            chosen.grader.value,
            sampler,
            chosen.dtype.value,
            *chosen.limits.value,
            prompt=chosen.prompt.value,
        )
    return found


def folders(targets: list[Target], out: Path | None) -> list[Path]:
    """The output folder of each model; models with the same name use their whole paths."""
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


def evaluate_target(
    target: Target,
    sets: list[EvaluationSet],
    settings: EvaluationSettings,
    out: Path,
    args: argparse.Namespace,
) -> list[Entry]:
    """All entries of one model; each is written to scores.json as soon as it is finished."""
    entries: list[Entry] = []
    with ExitStack() as stack:
        judge = stack.enter_context(BenchmarkJudge(settings.grader, prompt=settings.prompt))
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

        check_folder(str(target.folder), options)
        return VllmSampler(target.folder, options)
    return NativeSampler(load_policy(str(target.folder), options))


def _progress(quiet: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
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
    """Set -> its local file; the name may be left out if there is only one set."""
    if len(names) == 1 and len(given) == 1 and "=" not in given[0]:
        return {names[0]: given[0]}
    paths = {}
    for pair in given:
        name, equals, path = pair.partition("=")
        if not (equals and name and path):
            raise UserError(f"--path is {pair!r}; expected NAME=FILE, such as geometry3k=test.parquet.")
        paths[name] = path
    return paths
