"""Fair tuning: what is best is chosen on the validation split, and judged on the final sets."""

from __future__ import annotations

from pivot.reproduce.plan import Group, Side, short_setting
from pivot.reproduce.results import Results
from pivot.reproduce.screening import best_side, seeds_of_choice, sides_of
from pivot.reproduce.tables import DAPO, GAP, NOT_RUN, Line, difference_of, interval, lines, markdown, mean_of
from pivot.reproduce.verdicts import compare, verdict

OWN = "unchanged"
"""How a cell without the swept setting is called."""


def sweep_table(results: Results, group: Group) -> str:
    """One arm's sweep: validation accuracy, the choice, and what the final sets say; compared with DAPO."""
    chosen = lines(group)
    best = best_side(results, [line.side for line in chosen], group)
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
    dapo = best_side(results, sides_of(group, "dapo"), group)
    rows = []
    for arm in group.arms:
        sides = sides_of(group, arm)
        seeds = seeds_of_choice(results, sides, group)
        curve = [mean_of(results, Line(arm, side, seeds or group.seeds), "validation") for side in sides]
        best = best_side(results, sides, group)
        common = difference_of(results, Line(arm, Side(arm), group.seeds, DAPO), "test")
        own = said = GAP
        if arm == "dapo":
            common = GAP
        elif best is not None and dapo is not None:
            found = compare(results, best, dapo, "test", group.seeds)
            own = GAP if found is None else interval(found)
            said = NOT_RUN if found is None else verdict(found)
        chosen = NOT_RUN if best is None else _value(best)
        rows.append([arm, *curve, f"{seeds}" if seeds else GAP, chosen, common, own, said])
    names = [_value(side) for side in sides_of(group, "dapo")]
    head = ["", *(f"validation, {name}" for name in names), "seeds of the choice", "own best"]
    return markdown([*head, "common value", "own best", "verdict"], rows)


def area_table(results: Results, group: Group) -> str:
    """Area under the learning curve at each value, on the seeds that make the choice: a larger step is faster too."""
    rows = []
    for arm in group.arms:
        sides = sides_of(group, arm)
        seeds = seeds_of_choice(results, sides, group)
        found = [mean_of(results, Line(arm, side, seeds or group.seeds), "auc") for side in sides]
        rows.append([arm, f"{seeds}" if seeds else GAP, *found])
    return markdown(["", "seeds", *(_value(side) for side in sides_of(group, group.arms[0]))], rows)


def _value(side: Side) -> str:
    return " ".join(map(short_setting, side.settings)) or OWN
