"""The parts of the results page, one for each group of the plan, made of what is finished."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pivot.reproduce.plan import BASE, Cell, Plan, Side, short_setting
from pivot.reproduce.results import Results
from pivot.reproduce.screening import due_cells, due_of_group
from pivot.reproduce.statistics import show
from pivot.reproduce.tables import (
    GAP,
    NOT_RUN,
    Line,
    accuracy_table,
    claims_table,
    image_table,
    lines,
    markdown,
    seeds_table,
    task_table,
    time_table,
)
from pivot.reproduce.tuning import area_table, fair_table, sweep_table
from pivot.reproduce.verdicts import Judged, judge
from pivot.reproduce.world_tables import description_table, help_table, kind_table

LEGEND = (
    "Accuracies are per cent, mean ± standard deviation over seeds; a difference is in points, with the 95% interval "
    "of a paired bootstrap over seeds and prompts. *In form*: in-domain responses that keep the format asked for."
)
PAPERS_OVERHEAD = {"vppo": "+18.8%", "pivot": "+23.2%"}
"""Of a step relative to DAPO, 7B on 4 GPUs (the paper's overhead table)."""


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it, paragraph by paragraph."""

    title: str
    paragraphs: tuple[str, ...]
    level: int = 2

    def markdown(self) -> str:
        return "\n\n".join([f"{'#' * self.level} {self.title}", *self.paragraphs])


def all_sections(plan: Plan, results: Results) -> Iterator[Section]:
    yield Section("Where it stands", tuple(_status(plan, results)))
    judged = [judge(results, claim) for claim in plan.claims]
    yield Section("Verdicts", tuple(_verdicts(judged)))
    for name in plan.groups:
        cells = due_of_group(results, name)
        done = len(results.get(cells))
        about = f"{plan.groups[name].about[:1].upper()}{plan.groups[name].about[1:]}."
        title = TITLES.get(name, name.replace("-", " ").capitalize())
        if not done:
            body = [f"*Not run yet: 0 of {len(cells)} cells.* `pivot reproduce --only {name}`"]
        else:
            build = BUILDERS.get(name, _against_own_arm)
            body = [f"{done} of {len(cells)} cells.", *build(plan, results, name)]
        yield Section(title, (about, *body))
    if any(not cell.is_single for cell in results.by_cell):
        about = "Of every finished cell the in-domain accuracy, in brackets how many responses are in form, per cent."
        yield Section("Seed by seed", (about, seeds_table(results)))


def _status(plan: Plan, results: Results) -> Iterator[str]:
    cells = due_cells(results, plan.cells())
    yield (
        f"{len(results.by_cell)} of {len(cells)} cells are finished. "
        f"Plan: version {plan.version}, digest `{plan.digest}`."
    )
    machines = Counter(
        f"{raw['machine']['processor']}, torch {raw['machine']['torch']}" for raw in results.by_cell.values()
    )
    if machines:
        seconds = sum(raw["seconds"]["cell"] for raw in results.by_cell.values())
        where = "; ".join(f"{machine} ({n} cells)" for machine, n in machines.most_common())
        yield f"Machine: {where}; one thread a cell, {show(seconds / 3600, '.1f')} hours of cells in all."
    other = sum(raw["plan"] != plan.digest for raw in results.by_cell.values())
    if other:
        yield f"{other} of the finished cells ran under an earlier wording of the plan that left them as they are."
    kept = [f"`{setting}`" for setting in plan.defaults]
    kept += [f"`{setting}` ({arm})" for arm, settings in plan.presets.items() for setting in settings]
    if kept:
        yield (
            "Defaults that have changed since the plan was written have their old values in all tables, "
            f"unless a row says otherwise: {', '.join(kept)}."
        )
    changed = "\n".join(f"- {change}" for change in plan.changes)
    yield (
        f"Changes to the plan since it was committed:\n\n{changed}"
        if changed
        else ("The plan has not been changed since it was committed.")
    )


def _verdicts(judged: list[Judged]) -> Iterator[str]:
    counts = Counter(one.verdict for one in judged)
    order = ("holds", "no difference seen", "reversed", "not run yet")
    yield f"{len(judged)} claims: " + ", ".join(f"{counts[v]} {v}" for v in order if counts[v]) + "."
    for source, title in (("paper", "The paper's claims, in this world"), ("ours", "Our own questions")):
        chosen = [one for one in judged if one.claim.source == source]
        if chosen:
            yield f"**{title}**"
            yield claims_table(chosen)


def _main(plan: Plan, results: Results, name: str) -> Iterator[str]:
    chosen = lines(plan.groups[name])
    yield LEGEND
    yield accuracy_table(results, chosen)
    yield "In domain, by task:"
    yield task_table(results, chosen, "test")
    yield "Out of domain, by task:"
    yield task_table(results, chosen, "ood")
    yield "Reliance on the image, on test prompts. `base` is before training:"
    yield image_table(results, chosen)
    yield "Equal steps and equal time, on the validation split:"
    yield time_table(results, chosen)
    shown = [line for line in chosen if line.side.arm in ("base", "dapo", "pivot")]
    yield "Visual support c by kind of token:"
    yield kind_table(results, shown)


def _accuracies(plan: Plan, results: Results, name: str) -> Iterator[str]:
    yield accuracy_table(results, lines(plan.groups[name]))


def _grpo(plan: Plan, results: Results, name: str) -> Iterator[str]:
    yield "Differences are to GRPO."
    yield accuracy_table(results, lines(plan.groups[name], "grpo"))


def _against_own_arm(plan: Plan, results: Results, name: str) -> Iterator[str]:
    """Variants of one arm, compared with that arm as it is."""
    group = plan.groups[name]
    if not group.vary:
        yield from _accuracies(plan, results, name)
        return
    base = " ".join([group.arms[0], *map(short_setting, group.settings)])
    yield f"Differences are to `{base}` as it is."
    yield accuracy_table(results, lines(group, group.arms[0]))


def _sweep(plan: Plan, results: Results, name: str) -> Iterator[str]:
    yield "The choice is made on the validation split; differences are to DAPO."
    yield sweep_table(results, plan.groups[name])


def _learning_rate(plan: Plan, results: Results, name: str) -> Iterator[str]:
    screened = plan.groups[name].screened
    yield (
        "Validation accuracy at each value, on the seeds that make the choice; the arm's own best by it; and the "
        "in-domain difference to DAPO on all seeds: both at the common value, and each at its own best."
    )
    if screened:
        first = f"{screened} seeds" if screened > 1 else "seed"
        yield (
            f"Every value runs with the first {first}, the common one and the one chosen with all. Where more "
            "seeds are finished at every value, all of them choose."
        )
    yield fair_table(results, plan.groups[name])
    yield (
        "Area under the learning curve at each value, on the same seeds. A method that is faster at the common value "
        "is to be seen beside DAPO with larger steps:"
    )
    yield area_table(results, plan.groups[name])


def _worlds(plan: Plan, results: Results, name: str) -> Iterator[str]:
    group = plan.groups[name]
    worlds = [world for world in plan.worlds if world == "main" or world in group.worlds]
    yield "\n".join(f"- **{label}**: {world.about}." for label, world in plan.worlds.items())
    yield (
        "The starting points, per cent. *Rewarded without right percepts*: of the responses that guess or name a "
        "wrong percept, how many are rewarded. *Weight of words*: the share of filler and template tokens in the sum "
        "of 1 - p, a measure of how much of the gradient they carry. c is the mean visual support of digits that are "
        "said to be read off the image."
    )
    yield description_table(plan, results, worlds)
    arms = [arm for arm in group.arms if not Cell("", arm).is_single and arm != "dapo"]
    yield "Difference to DAPO of the same world:"
    yield help_table(results, worlds, arms, _seeds(plan, worlds, name))
    yield "Visual support c by kind of token, before training:"
    for world in (world for world in worlds if results.get([Cell(world, BASE)])):
        yield f"{world}:"
        yield kind_table(results, [Line("base", Side(BASE, world), 1)])


def _other_worlds(plan: Plan, results: Results, name: str) -> Iterator[str]:
    group = plan.groups[name]
    yield "Difference to DAPO of the same world:"
    yield help_table(results, group.worlds, group.arms, dict.fromkeys(group.worlds, group.seeds))


def _seeds(plan: Plan, worlds: list[str], name: str) -> dict[str, int]:
    main = plan.groups["main"].seeds if "main" in plan.groups else plan.groups[name].seeds
    return {world: main if world == "main" else plan.groups[name].seeds for world in worlds}


def _overhead(plan: Plan, results: Results, name: str) -> Iterator[str]:
    raw = next(iter(results.get(plan.group_cells(name))), None)
    if raw is None:
        yield NOT_RUN
        return
    timed = raw["overhead"]
    base = timed["dapo"]["processor"] if "dapo" in timed else None
    rows = []
    for arm, found in timed.items():
        more = (
            GAP
            if base is None or arm == "dapo"
            else show(100 * (found["processor"] / base - 1), "+.1f") + "%"
        )
        phases = [show(found.get(phase, 0.0), ".2f") for phase in ("rollout", "anchors", "score", "update")]
        size = show(found["buffer_megabytes"], ".2f")
        rows.append(
            [arm, show(found["processor"], ".2f"), more, PAPERS_OVERHEAD.get(arm, GAP), *phases, size]
        )
    head = [
        "",
        "processor s a step",
        "to DAPO",
        "the paper's",
        "rollout",
        "anchors",
        "score",
        "update",
        "buffer, MB",
    ]
    yield (
        "Median seconds of a step on one thread, one step of each method in turn; phases are wall time. The paper's "
        "figures are of a 7B model on four GPUs."
    )
    yield markdown(head, rows)


TITLES = {
    "main": "Main table",
    "worlds": "Where each module helps",
    "bounded": "Small changes to PIVOT: bounded, adaptive, absolute",
    "bounded-worlds": "The changes in the other worlds",
    "bounded-ends": "The two halves of bounded PIVOT",
    "strict": "Absolute and strict PIVOT",
    "strict-worlds": "Absolute and strict PIVOT in two other worlds",
    "tuned": "PIVOT with beta and lambda_exp chosen on the validation split",
    "tuned-worlds": "The same in the other worlds",
    "grpo": "PIVOT on GRPO",
    "push": "What Eq. 14 does in expectation: a perception term",
    "push-wordy": "The same term among many words",
    "weighted": "PIVOT that weighs instead of pushing",
    "weighted-worlds": "The same in two other worlds",
    "weighted-beta": "Weighing three times as strongly",
    "gentle": "The ablation at beta = 0.1",
    "long": "Three hundred steps",
    "learning-rate": "Learning rate",
    "beta": "Sensitivity: beta",
    "lambda-exp": "Sensitivity: lambda_exp",
    "interventions": "Image interventions",
    "open-calibration": "Open question: the calibration gap",
    "open-questions": "Open questions of the paper",
    "open-tuned": "The open questions again, with tuned PIVOT",
    "open-entropy": "Open question: entropy without PIVOT",
}
BUILDERS: dict[str, Callable[[Plan, Results, str], Iterator[str]]] = {
    "main": _main,
    "ablation": _accuracies,
    "interventions": _accuracies,
    "bounded": _accuracies,
    "grpo": _grpo,
    "beta": _sweep,
    "lambda-exp": _sweep,
    "sensitivity": _sweep,
    "learning-rate": _learning_rate,
    "worlds": _worlds,
    "bounded-worlds": _other_worlds,
    "overhead": _overhead,
}
"""Group -> what its section shows; any other group shows accuracies."""
