"""What `pivot sweep --dry-run` prints: every run with its settings, commands and estimated GPU hours."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pivot import recipes
from pivot.config import Config
from pivot.config.methods import find_method
from pivot.config.schema import all_fields
from pivot.sweep import estimate
from pivot.sweep.axes import setting_text
from pivot.sweep.claims import judge_claims
from pivot.sweep.followups import followups
from pivot.sweep.plan import Engine, Plan
from pivot.sweep.runs import SweepRun
from pivot.sweep.schedule import best_variant, due_tasks, families
from pivot.sweep.scores import unmeasured

CLUSTER = Engine("verl", nodes=2, gpus=8, address="auto")
"""The cluster in the printed commands, unless the plan or the command line names another."""


def describe(plan: Plan, runs: Sequence[SweepRun]) -> str:
    """The whole listing."""
    source = f" ({plan.source})" if plan.source else ""
    lines = [f"{plan.name}: {plan.title}{source}", _summary(plan, runs), ""]
    due = {task.label for task in due_tasks(plan, runs)}
    for run in runs:
        lines += [*_describe_run(run, run.label in due), ""]
    for command in followups(plan, runs):
        lines += ["afterwards", f"  {_typed(command.words)}", ""]
    if plan.claims:
        lines += ["claims", *(f"  {one.text} by {one.measure}" for one in judge_claims(plan, runs)), ""]
    lines += _totals(plan, runs)
    return "\n".join(lines if all(map(_is_small, runs)) else [*lines, "", estimate.ASSUMPTIONS])


def _summary(plan: Plan, runs: Sequence[SweepRun]) -> str:
    trained = sum(run.seed is not None for run in runs)
    seeds = f"{plan.seeds} seed{'s' * (plan.seeds > 1)}"
    said = f"{len(plan.arms)} arms, {seeds}: {trained} runs to train from recipe {plan.recipe}"
    if plan.screen:
        first = "seed 0" if plan.screen == 1 else f"seeds 0 to {plan.screen - 1}"
        said += f" at most; {first} at every value, the others at each arm's best on the validation split"
    if not plan.sets:
        return f"{said}; no evaluation follows"
    rows = "" if plan.limit is None else f", the first {plan.limit} rows of each"
    return f"{said}; {len(runs)} models to evaluate, accuracy@{plan.samples} on {', '.join(plan.sets)}{rows}"


def _describe_run(run: SweepRun, is_due: bool) -> Iterator[str]:
    if run.missing:
        needed = " ".join(f"--set {path}=..." for path in run.missing)
        yield f"{run.label}  [needs {', '.join(run.missing)}: left out unless you give {needed}]"
    else:
        yield f"{run.label}  [{_status(run) if is_due else 'if screening chooses this value'}]"
    if run.seed is not None:
        yield f"  settings: {', '.join(differences(run.config))}"
    if run.seed is not None and _is_small(run):
        yield f"  train:    {_typed(run.train_command(run.plan.engine))}"
    elif run.seed is not None:
        yield f"  one node: {_typed(run.train_command(_one_node(run.plan.engine)))}"
        yield f"  cluster:  {_typed(run.train_command(_cluster(run.plan.engine)))}"
        estimated = estimate.estimate_training(run.config)
        yield f"  estimate: {estimated.text() if estimated else 'unknown: the model has no known size'}"
    if run.plan.sets:
        yield f"  evaluate: {_typed(run.eval_command(run.benchmarks))}"


def _is_small(run: SweepRun) -> bool:
    """Whether it needs no GPU, so that there are no GPU hours to estimate and no cluster to name."""
    model = run.config.model
    return run.plan.engine.name == "local" and (model.device == "cpu" or recipes.is_shipped(model.path))


def _status(run: SweepRun) -> str:
    if not run.is_trained:
        return "to train"
    return "to evaluate" if unmeasured(run) else "finished"


def differences(config: Config) -> list[str]:
    """`method=grpo`, and every other setting that is not the recipe's or the method's own."""
    usual = replace(recipes.get(config.recipe), method=find_method(config.method.spec))
    before = {info.path: info.value for info in all_fields(usual)}
    changed = [
        f"{info.path}={setting_text(info.value)}"
        for info in all_fields(config)
        if info.value != before.get(info.path)
    ]
    return [f"method={config.method.spec}", *changed]


def _one_node(engine: Engine) -> Engine:
    return replace(engine, nodes=1, address=None)


def _cluster(engine: Engine) -> Engine:
    return replace(engine, address=engine.address or "auto") if engine.nodes > 1 else CLUSTER


def _typed(words: Sequence[str]) -> str:
    return shlex.join(["pivot", *words])


def _totals(plan: Plan, runs: Sequence[SweepRun]) -> Iterator[str]:
    """Each folder counts once: arms of one configuration share a run. Runs that are left out do not count."""
    unique = list({run.folder: run for run in _expected(plan, runs)}.values())
    trained = [run for run in unique if run.seed is not None]
    left_out = sum(bool(run.missing) for run in runs)
    without = [f"without {left_out} runs that are left out"] if left_out else []
    if all(map(_is_small, unique)):
        yield "; ".join([f"training:   {len(trained)} runs", *without])
        return
    found = [estimate.estimate_training(run.config) for run in trained]
    hours = sum(one.gpu_hours for one in found if one)
    notes = [f"without {found.count(None)} runs of unknown size"] if None in found else []
    notes += without
    yield "; ".join([f"training:   {len(trained)} runs, about {hours:.1f} GPU hours in total", *notes])
    if plan.sets:
        yield f"evaluation: {_evaluation(plan, unique)}"


def _expected(plan: Plan, runs: Sequence[SweepRun]) -> list[SweepRun]:
    """The runs that are due, and of an arm that screening has not decided yet all seeds of one value."""
    undecided = (
        [family for family in families(plan) if best_variant(plan, runs, family) is None]
        if plan.screen
        else []
    )
    later = {plan.variants(family)[0] for family in undecided}
    due = {task.label for task in due_tasks(plan, runs)}
    return [run for run in runs if run.label in due or (run.arm in later and not run.missing)]


def _evaluation(plan: Plan, runs: Sequence[SweepRun]) -> str:
    prompts = estimate.count_prompts(plan.sets, plan.limit)
    if prompts is None:
        return f"{len(runs)} models; the number of rows is not known"
    responses = prompts * plan.samples
    hours = [estimate.evaluation_hours(run.config, responses) for run in runs]
    each = f"{len(runs)} models x {prompts:,} prompts x {plan.samples} responses"
    if None in hours:
        return each
    return f"{each}, about {sum(hour for hour in hours if hour):.1f} GPU hours in total"
