"""`pivot methods [NAME]`: what each method turns on, read off its switches."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

from rich import box
from rich.console import Console
from rich.table import Table

from pivot.config.describe import describe_field, spell
from pivot.config.loading import preset, to_dict
from pivot.config.schema import all_fields
from pivot.method import PRESETS, Method

OFF = "-"
FURTHER = "further switches"
MIN_WIDTH = 140
"""Columns of the table where output is no terminal."""


def _clip(method: Method) -> str:
    return f"{method.clip_low:g} / {method.clip_high:g}"


def _kl(method: Method) -> str:
    return f"{method.reference_kl_coef:g}" if method.needs_reference else OFF


def _visual(method: Method) -> str:
    return OFF if method.utility == "none" else f"{method.utility}, beta {method.beta:g}"


def _replay(method: Method) -> str:
    return f"{method.replay_share:.0%}" if method.replay else OFF


def _anchor(method: Method) -> str:
    return f"{method.anchor_use}, {method.anchor_source}" if method.needs_anchors else OFF


COLUMNS: dict[str, tuple[tuple[str, ...], Callable[[Method], str]]] = {
    "clip": (("clip_low", "clip_high"), _clip),
    "mean": (("aggregation",), lambda method: method.aggregation),
    "KL": (("reference_kl_coef",), _kl),
    "dynamic": (("dynamic_sampling",), lambda method: "yes" if method.dynamic_sampling else OFF),
    "visual": (("utility", "beta"), _visual),
    "replay": (("replay", "replay_share"), _replay),
    "anchor": (("anchor_use", "anchor_source"), _anchor),
}
"""Column -> the switches it speaks for, and how it spells them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="print every switch of this method")
    parser.add_argument("--json", action="store_true", help="JSON instead of text")


def run(args: argparse.Namespace) -> int:
    chosen = list(PRESETS.values()) if args.name is None else [preset(args.name)]
    if args.json:
        objects = [_as_json(method) for method in chosen]
        print(json.dumps(objects if args.name is None else objects[0], indent=2))
    elif args.name is None:
        _print_table(chosen)
    else:
        print("\n".join(_listing(chosen[0])))
    return 0


def turned_on(method: Method) -> dict[str, object]:
    """The switches that differ from the neutral method, whose every part is off."""
    neutral = to_dict(Method(method.name, method.summary))
    return {name: value for name, value in to_dict(method).items() if value != neutral[name]}


def _print_table(methods: list[Method]) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, MIN_WIDTH)
    table = Table(box=box.SIMPLE, pad_edge=False, show_edge=False)
    for title in ("method", *COLUMNS, FURTHER):
        table.add_column(title, no_wrap=title != FURTHER and console.width >= MIN_WIDTH)
    covered = {name for names, _ in COLUMNS.values() for name in names}
    for method in methods:
        cells = [write(method) for _, write in COLUMNS.values()]
        further = [
            f"{name} {spell(value)}" for name, value in turned_on(method).items() if name not in covered
        ]
        table.add_row(method.name, *cells, ", ".join(further) or OFF)
    console.print(table)
    console.print("`pivot methods NAME` prints every switch of a method.", highlight=False)


def _listing(method: Method) -> list[str]:
    """Summary, then every switch with its doc; `*` marks those that differ from the neutral method."""
    lines = [
        f"{method.name}: {method.summary}",
        "(* differs from the neutral method, whose every part is off)",
    ]
    changed = turned_on(method)
    for info in all_fields(method, "method."):
        if info.path in ("method.name", "method.summary"):
            continue
        head, *doc = describe_field(info)
        is_changed = info.path.removeprefix("method.") in changed
        lines += [("*" if is_changed else " ") + head[1:], *doc]
    return lines


def _as_json(method: Method) -> dict[str, object]:
    return {
        "name": method.name,
        "summary": method.summary,
        "turns_on": turned_on(method),
        "fields": to_dict(method),
    }
