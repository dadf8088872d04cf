"""What each world is like before training, where each method helps in it, and why: c by kind of token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pivot.reproduce.kinds import KINDS, Kind
from pivot.reproduce.plan import BASE, Cell, Plan, Side
from pivot.reproduce.results import Raw, Results
from pivot.reproduce.statistics import show
from pivot.reproduce.tables import GAP, NOT_RUN, Line, difference_of, markdown

Entry = tuple[float, float, float]
"""Tokens, mean c, sum of 1 - p."""


def description_table(plan: Plan, results: Results, worlds: Iterable[str]) -> str:
    """Each world's start: accuracy, where errors come from, how often a wrong percept is rewarded, filler's weight."""
    head = ["", "in domain", "out of domain", "blank", "wrong: guessed", "wrong: a wrong percept",
            "rewarded without right percepts", "weight of words", "c, right percepts", "c, wrong percepts"]  # fmt: skip
    rows = []
    for world in worlds:
        raw = results.by_cell.get(Cell(world, BASE))
        rows.append([world, NOT_RUN, *(GAP for _ in head[2:])] if raw is None else [world, *_described(raw)])
    return markdown(head, rows)


def _described(raw: Raw) -> list[str]:
    sets = (raw["sets"][name] for name in ("test", "ood", "blank"))
    accuracies = [_share(sum(s["correct"]), len(s["correct"]) * s["samples"]) for s in sets]
    origins = raw["looks"]["origins"]
    wrong = sum(counts[1] for counts in origins.values())
    blind = [origins["guessed"], origins["looked wrong"]]
    pooled = pool(raw, ("right", "wrong"))
    weight = sum(entry[2] for entry in pooled.values())
    return [
        *accuracies,
        _share(origins["guessed"][1], wrong),
        _share(origins["looked wrong"][1], wrong),
        _share(sum(c[0] for c in blind), sum(c[0] + c[1] for c in blind)),
        _share(pooled["words"][2], weight) if "words" in pooled else GAP,
        _support(pooled, "right percept"),
        _support(pooled, "wrong percept"),
    ]


def pool(raw: Raw, verdicts: Sequence[str]) -> dict[Kind, Entry]:
    """c by kind of token over right responses, wrong ones, or both."""
    found: dict[Kind, Entry] = {}
    for kind in KINDS:
        entries = [
            raw["looks"]["kinds"][v][kind] for v in verdicts if kind in raw["looks"]["kinds"].get(v, {})
        ]
        tokens = sum(entry[0] for entry in entries)
        if tokens:
            mean = sum(entry[0] * entry[1] for entry in entries) / tokens
            found[kind] = (tokens, mean, sum(entry[2] for entry in entries))
    return found


def kind_table(results: Results, chosen: Sequence[Line]) -> str:
    """Mean c of each kind of token in right and in wrong responses, all finished seeds together."""
    columns = [(line, verdict) for line in chosen for verdict in ("right", "wrong")]
    pooled = []
    for line, verdict in columns:
        raws = results.get(line.cells)
        pooled.append([pool(raw, (verdict,)) for raw in raws] if len(raws) == len(line.cells) else [])
    if not any(pooled):
        return NOT_RUN
    rows = [[kind, *(_mean_support(found, kind) for found in pooled)] for kind in KINDS]
    return markdown(["", *(f"{line.label}, {verdict} responses" for line, verdict in columns)], rows)


def _mean_support(found: Sequence[Mapping[Kind, Entry]], kind: Kind) -> str:
    entries = [one[kind] for one in found if kind in one]
    tokens = sum(entry[0] for entry in entries)
    return show(sum(n * c for n, c, _ in entries) / tokens, "+.2f") if tokens else GAP


def help_table(results: Results, worlds: Sequence[str], arms: Sequence[str], seeds: Mapping[str, int]) -> str:
    """Difference to DAPO of the same world, in and out of domain, a row a world."""
    head = ["", *(f"{arm}, {where}" for arm in arms for where in ("in domain", "out of domain"))]
    rows = []
    for world in worlds:
        cells = [world]
        for arm in arms:
            line = Line(arm, Side(arm, world), seeds[world], Side("dapo", world))
            cells += [difference_of(results, line, metric) for metric in ("test", "ood")]
        rows.append(cells)
    return markdown(head, rows)


def _share(part: float, whole: float) -> str:
    return show(100 * part / whole, ".1f") if whole else GAP


def _support(pooled: Mapping[Kind, Entry], kind: Kind) -> str:
    return show(pooled[kind][1], "+.2f") if kind in pooled else GAP
