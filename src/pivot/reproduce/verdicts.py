"""A plain verdict for each claim of the plan: holds, no difference seen, reversed, or not run yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from pivot.reproduce.plan import Claim, Side, side_cells
from pivot.reproduce.results import Results, at_equal_time
from pivot.reproduce.statistics import Difference, paired_difference

Verdict = Literal["holds", "no difference seen", "reversed", "not run yet"]


@dataclass(frozen=True)
class Judged:
    """A claim with what the results say of it."""

    claim: Claim
    difference: Difference | None
    done: int
    """Cells of both sides that are finished."""
    needed: int

    @property
    def verdict(self) -> Verdict:
        return "not run yet" if self.difference is None else verdict(self.difference)


def verdict(difference: Difference) -> Verdict:
    """Holds when the whole interval is above 0, reversed when it is below, else no difference was seen."""
    if difference.low > 0:
        return "holds"
    return "reversed" if difference.high < 0 else "no difference seen"


def judge(results: Results, claim: Claim) -> Judged:
    """Judged only when every planned seed of both sides is finished, so that nobody can stop at a good moment."""
    cells = side_cells(claim.first, claim.seeds) + side_cells(claim.second, claim.seeds)
    done = len(results.get(cells))
    found = compare(results, claim.first, claim.second, claim.metric, claim.seeds)
    return Judged(claim, found, done, len(cells))


def compare(results: Results, first: Side, second: Side, metric: str, seeds: int) -> Difference | None:
    """The paired difference of two sides; None unless all their cells are finished (and timed, for equal time)."""
    ours, theirs = side_cells(first, seeds), side_cells(second, seeds)
    if metric == "equal_time":
        one, other = results.get(ours), results.get(theirs)
        our_pace, their_pace = results.pace(first.arm), results.pace(second.arm)
        if len(one) < len(ours) or len(other) < len(theirs) or our_pace is None or their_pace is None:
            return None
        pairs = np.array(
            [at_equal_time(a, b, (our_pace, their_pace)) for a, b in zip(one, other, strict=True)]
        )
        return paired_difference(pairs[:, :1], pairs[:, 1:])
    one_SP, other_SP = results.values(ours, metric), results.values(theirs, metric)
    if one_SP is None or other_SP is None:
        return None
    return paired_difference(one_SP, other_SP)
