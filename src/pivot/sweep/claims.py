"""What the finished runs say about the plan's claims: paired differences over seeds, intervals and verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pivot.report.tables import Column, Row, Table
from pivot.sweep.axes import is_selected
from pivot.sweep.plan import Claim, Plan
from pivot.sweep.runs import SweepRun
from pivot.sweep.schedule import best_variant
from pivot.sweep.scores import measure_pair
from pivot.sweep.statistics import Difference, paired_difference


@dataclass(frozen=True)
class Judged:
    """A claim about two arms with what their runs say."""

    better: str
    than: str
    measure: str
    margin: float | None
    difference: Difference | None
    """None before every planned seed of both arms has run: stopping at a favourable moment must not decide a claim."""
    pairs: int
    """How many of the planned pairs of runs have finished."""
    planned: int

    @property
    def text(self) -> str:
        return f"{self.better} beats {self.than}"

    @property
    def verdict(self) -> str:
        if self.difference is None:
            return f"not run yet ({self.pairs} of {self.planned} seeds)"
        return self.difference.verdict(None if self.margin is None else self.margin / 100)


def judge_claims(plan: Plan, runs: Sequence[SweepRun]) -> list[Judged]:
    """Every claim; of varied arms once per value, of screened ones at the best value of each."""
    return [
        _judge(plan, runs, claim, better, than)
        for claim in plan.claims
        for better, than in _sides(plan, runs, claim)
    ]


def _sides(plan: Plan, runs: Sequence[SweepRun], claim: Claim) -> list[tuple[str, str]]:
    """The arms to compare."""
    if not plan.screen:
        pairs = [(name, plan.counterpart(name, claim.than)) for name in plan.variants(claim.better)]
        if len(pairs) == 1 and pairs[0][1] is None:  # the base model against every value
            pairs = [(claim.better, name) for name in plan.variants(claim.than)]
        return [
            (name, other)
            for name, other in pairs
            if other is not None and _is_claimed(plan, claim, name, other)
        ]
    best = [best_variant(plan, runs, family) or family for family in (claim.better, claim.than)]
    return [(best[0], best[1])]


def _is_claimed(plan: Plan, claim: Claim, *names: str) -> bool:
    varied = [plan.arms[name].values for name in names if plan.arms[name].values]
    return all(is_selected(values, claim.at) for values in varied)


def _judge(plan: Plan, runs: Sequence[SweepRun], claim: Claim, better: str, than: str) -> Judged:
    measure = claim.measure or ("accuracy" if plan.averaged else "final")
    sides = [[run for run in runs if run.arm == name] for name in (better, than)]
    needed = max(map(len, sides), default=0)
    pairs = []
    for ours, theirs in _paired(*sides):
        found = measure_pair(measure, ours, theirs)
        pairs += [] if found is None else [found]
    difference = None
    if pairs and len(pairs) == needed:
        values_S2 = np.array(pairs)
        difference = paired_difference(values_S2[:, :1], values_S2[:, 1:])
    return Judged(better, than, measure, claim.margin, difference, len(pairs), needed or plan.seeds)


def _paired(first: list[SweepRun], second: list[SweepRun]) -> list[tuple[SweepRun, SweepRun]]:
    """Runs of the same seed; the model before training is paired with every seed of the other arm."""
    if len(first) == 1 and first[0].seed is None:
        return [(first[0], other) for other in second]
    if len(second) == 1 and second[0].seed is None:
        return [(one, second[0]) for one in first]
    by_seed = {run.seed: run for run in second}
    return [(run, by_seed[run.seed]) for run in first if run.seed in by_seed]


def claims_table(judged: Sequence[Judged]) -> Table:
    """A row per claim with a pair of runs: difference in points, the ends of its 95% interval, the verdict."""
    columns = (Column("Measure", best=None), Column("Seeds", best=None, form="d"))
    columns += tuple(Column(name, best=None, form="+.2f") for name in ("Difference", "Low", "High"))
    columns += (Column("Verdict", best=None),)
    rows = []
    begun = [one for one in judged if one.pairs]
    for one in begun:
        found = one.difference
        numbers = (None, None, None, None)
        if found is not None:
            ends = (100 * found.low, 100 * found.high) if found.seeds > 1 else (None, None)
            numbers = (found.seeds, 100 * found.mean, *ends)
        rows.append(Row(one.text, (one.measure, *numbers, one.verdict), ranked=False))
    caption = "Claims: differences in points, paired by seed; low and high are the ends of a 95% interval over seeds"
    if left := len(judged) - len(begun):
        caption += f"; {left} claim{'s have' if left > 1 else ' has'} no finished pair of runs yet"
    return Table("claims", caption, "Claim", columns, tuple(rows))
