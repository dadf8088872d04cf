"""Fair tuning: what is best is chosen on the validation split, and judged on the final sets."""

from __future__ import annotations

from collections.abc import Sequence

from pivot.reproduce.plan import Group, Side, short_setting
from pivot.reproduce.results import Results
from pivot.reproduce.tables import DAPO, GAP, NOT_RUN, Line, difference_of, interval, lines, markdown, mean_of
from pivot.reproduce.verdicts import compare, verdict

OWN = "unchanged"
"""How a cell without the swept setting is called."""


def best_side(results: Results, sides: Sequence[Side], seeds: int) -> Side | None:
    """The one with the highest mean validation accuracy, of equal ones the first; None unless all are finished."""
    means: list[float] = []
    for side in sides:
        values_SP = results.values(Line("", side, seeds).cells, "validation")
        if values_SP is None:
            return None
        means.append(float(values_SP.mean()))
    return sides[means.index(max(means))]


def sweep_table(results: Results, group: Group) -> str:
    """One arm's sweep: validation accuracy, the choice, and what the final sets say; compared with DAPO."""
    chosen = lines(group)
    best = best_side(results, [line.side for line in chosen], group.seeds)
    rows = []
    for line in chosen:
        mark = " (chosen)" if line.side == best else ""
        found = [mean_of(results, line, metric) for metric in ("validation", "test", "ood")]
        deltas = [difference_of(results, line, metric) for metric in ("test", "ood")]
        rows.append([_value(line.side) + mark, found[0], found[1], deltas[0], found[2], deltas[1]])
    head = ["", "validation", "in domain", "difference", "out of domain", "difference"]
    return markdown(head, rows)


def fair_table(results: Results, group: Group) -> str:
    """Every arm at its own best value of the sweep, against DAPO at its own best and both at the common value."""
    variants = group.variants()
    dapo = best_side(results, [Side("dapo", "main", settings) for settings in variants], group.seeds)
    rows = []
    for arm in group.arms:
        sides = [Side(arm, "main", settings) for settings in variants]
        curve = [mean_of(results, Line(arm, side, group.seeds), "validation") for side in sides]
        best = best_side(results, sides, group.seeds)
        common = difference_of(results, Line(arm, Side(arm), group.seeds, DAPO), "test")
        own = said = GAP
        if arm == "dapo":
            common = GAP
        elif best is not None and dapo is not None:
            found = compare(results, best, dapo, "test", group.seeds)
            own = GAP if found is None else interval(found)
            said = GAP if found is None else verdict(found)
        rows.append([arm, *curve, NOT_RUN if best is None else _value(best), common, own, said])
    names = [_value(Side("dapo", "main", settings)) for settings in variants]
    head = ["", *(f"validation, {name}" for name in names), "own best", "common value", "own best", "verdict"]
    return markdown(head, rows)


def _value(side: Side) -> str:
    return " ".join(map(short_setting, side.settings)) or OWN
