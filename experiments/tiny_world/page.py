"""The page and its tables: README.md between its marks, and tables.md, both from the raw numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from experiments.tiny_world.figures import figures, write_figures
from experiments.tiny_world.plan import Cell, Plan, short_setting
from experiments.tiny_world.results import Judged, Results, due_cells, due_of_group, judge
from experiments.tiny_world.tables import (
    GAP,
    NOT_RUN,
    accuracy_table,
    area_table,
    claims_table,
    description_table,
    fair_table,
    help_table,
    image_table,
    kind_table,
    lines,
    markdown,
    seeds_table,
    sweep_table,
    task_table,
    time_table,
)
from pivot.durable import write_bytes
from pivot.errors import UserError
from pivot.sweep.statistics import show

BEGIN = "<!-- written by `python -m experiments.tiny_world --report`; don't edit by hand -->"
END = "<!-- end of the written part -->"
EMPTY = f"# Results\n\n{BEGIN}\n{END}\n"
ON_PAGE = ("main", "worlds")
"""Groups whose tables are on the page itself; the others are in tables.md."""
FIGURES = {
    "learning-steps": "Learning curves over steps",
    "learning-time": "Learning curves over training time",
    "training-accuracy": "Accuracy of the rollouts over steps",
    "claims": "All claims with their intervals",
    "worlds": "Difference to DAPO in each world, every seed",
    "sensitivity": "In-domain accuracy over beta and lambda_exp, every seed",
    "push": "Well-formed responses over the weight of the push, every seed",
}
HOMES = {
    "learning-steps": "Main table",
    "learning-time": "Main table",
    "training-accuracy": "Main table",
    "claims": "Verdicts",
    "worlds": "Where each module helps",
    "sensitivity": "Sensitivity: beta",
    "push": "What Eq. 14 does in expectation: a perception term",
}
"""Figure -> the section that shows it."""
LEGEND = (
    "Accuracies are per cent, mean ± standard deviation over seeds. Differences are in points, with the 95% interval "
    "of a paired bootstrap over seeds and prompts. *Well-formed*: in-domain responses that follow the format."
)
PAPERS_OVERHEAD = {"vppo": "+18.8%", "pivot": "+23.2%"}
"""Per step relative to DAPO, 7B on 4 GPUs (the paper's overhead table)."""


@dataclass(frozen=True)
class Section:
    """A heading and its paragraphs."""

    title: str
    paragraphs: tuple[str, ...]

    def markdown(self, drawn: list[str]) -> str:
        """With the figures that belong here."""
        here = [name for name in drawn if HOMES[name] == self.title]
        shown = [f"![{FIGURES[name]}](images/{name}.svg)" for name in here]
        return "\n\n".join([f"## {self.title}", *self.paragraphs, *shown])


def write_page(plan: Plan, results: Path, page: Path) -> Path:
    """Write the part between the marks of `page`, and beside it tables.md and the figures."""
    found = Results.load(plan, results)
    drawn = figures(plan, found)
    text = page.read_text(encoding="utf-8") if page.exists() else EMPTY
    filled = fill(text, page_body(plan, found, list(drawn)), page)
    page.parent.mkdir(parents=True, exist_ok=True)
    write_figures(drawn, page.parent / "images")
    write_bytes(page.with_name("tables.md"), tables_body(plan, found, list(drawn)).encode())
    write_bytes(page, filled.encode())
    return page


def page_body(plan: Plan, results: Results, drawn: list[str]) -> str:
    """Status, verdicts and the main tables."""
    sections = [Section("Status", tuple(_status(plan, results)))]
    sections.append(Section("Verdicts", tuple(_verdicts([judge(results, claim) for claim in plan.claims]))))
    sections += [_group_section(plan, results, name) for name in ON_PAGE if name in plan.groups]
    return "\n\n".join(section.markdown(drawn) for section in sections)


def tables_body(plan: Plan, results: Results, drawn: list[str]) -> str:
    """All other groups, and every seed."""
    sections = [_group_section(plan, results, name) for name in plan.groups if name not in ON_PAGE]
    if any(not cell.is_single for cell in results.by_cell):
        about = "In-domain accuracy of every finished cell and, in brackets, well-formed responses; per cent."
        sections.append(Section("Seed by seed", (about, seeds_table(results))))
    parts = ["# All other tables", BEGIN, LEGEND, *(section.markdown(drawn) for section in sections)]
    return "\n\n".join(parts) + "\n"


def fill(text: str, written: str, page: Path) -> str:
    """`text` with the part between the marks replaced."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"{page} lacks the marks {BEGIN!r} and {END!r}: put them where the results belong.")
    return f"{before}{BEGIN}\n\n{written}\n\n{END}{after}"


def _group_section(plan: Plan, results: Results, name: str) -> Section:
    cells = due_of_group(results, name)
    done = len(results.get(cells))
    about = f"{plan.groups[name].about[:1].upper()}{plan.groups[name].about[1:]}."
    title = TITLES.get(name, name.replace("-", " ").capitalize())
    if not done:
        return Section(title, (about, f"*Not run yet: 0 of {len(cells)} cells.*"))
    build = BUILDERS.get(name, _against_own_arm)
    return Section(title, (about, f"{done} of {len(cells)} cells.", *build(plan, results, name)))


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
        yield f"Machine: {where}; one thread per cell, {show(seconds / 3600, '.1f')} hours of cells in total."
    kept = [f"`{setting}`" for setting in plan.defaults]
    kept += [f"`{setting}` ({arm})" for arm, settings in plan.presets.items() for setting in settings]
    if kept:
        yield (
            "Package defaults that have changed since the plan was written keep their old values in all tables, "
            f"unless a row says otherwise: {', '.join(kept)}."
        )
    if plan.changes:
        yield f"The plan was changed {len(plan.changes)} times after it was committed; it says when and why."


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
    yield "Reliance on the image, on test prompts; `base` is before training:"
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
    """Variants of one arm, compared with the unchanged arm."""
    group = plan.groups[name]
    if not group.vary:
        yield from _accuracies(plan, results, name)
        return
    base = " ".join([group.arms[0], *map(short_setting, group.settings)])
    yield f"Differences are to `{base}`, unchanged."
    yield accuracy_table(results, lines(group, group.arms[0]))


def _sweep(plan: Plan, results: Results, name: str) -> Iterator[str]:
    yield "The choice is made on the validation split; differences are to DAPO."
    yield sweep_table(results, plan.groups[name])


def _learning_rate(plan: Plan, results: Results, name: str) -> Iterator[str]:
    screened = plan.groups[name].screened
    yield (
        "Validation accuracy at each value, on the seeds that make the choice; the arm's own best value; and the "
        "in-domain difference to DAPO on all seeds: both at the common value, and each at its own best."
    )
    if screened:
        first = f"{screened} seeds" if screened > 1 else "seed"
        yield (
            f"Every value runs with the first {first}, the common and the chosen value with all seeds. Where more "
            "seeds are finished at every value, all of them choose."
        )
    yield fair_table(results, plan.groups[name])
    yield (
        "Area under the learning curve at each value, on the same seeds. A method that is faster at the common value "
        "should be compared with DAPO at a larger one:"
    )
    yield area_table(results, plan.groups[name])


def _worlds(plan: Plan, results: Results, name: str) -> Iterator[str]:
    group = plan.groups[name]
    worlds = [world for world in plan.worlds if world == "main" or world in group.worlds]
    yield "\n".join(f"- **{label}**: {world.about}." for label, world in plan.worlds.items())
    yield (
        "The starting points, per cent. *Rewarded without right percepts*: of the responses that guess or name a "
        "wrong percept, the share that is rewarded. *Weight of words*: the share of filler and template tokens in the "
        "sum of 1 - p, a measure of their part of the gradient. c is the mean visual support of digits that the "
        "response reads off the image."
    )
    yield description_table(results, worlds)
    arms = [arm for arm in group.arms if not Cell("", arm).is_single and arm != "dapo"]
    yield "Difference to DAPO of the same world:"
    yield help_table(results, worlds, arms, _seeds(plan, worlds, name))


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
        "processor s per step",
        "to DAPO",
        "the paper's",
        "rollout",
        "anchors",
        "score",
        "update",
        "buffer, MB",
    ]
    yield (
        "Median seconds per step on one thread, one step of each method in turn; phases are wall time. The paper's "
        "figures are for a 7B model on four GPUs."
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
"""Group -> its section; any other group shows accuracies."""
