"""`pivot methods [NAME]`: the methods there are, and what each is composed of."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

from rich import box
from rich.table import Table

from pivot.config.describe import describe_field, spell
from pivot.config.methods import find_method, method_to_dict
from pivot.config.schema import method_fields, section_doc
from pivot.console import Console
from pivot.method import PRESETS, Method
from pivot.method.presets import GROUPS

OFF = "-"
FURTHER = "further settings"
MIN_WIDTH = 140
"""Columns of the table when the output is not a terminal."""

COLUMNS: dict[str, tuple[tuple[str, ...], Callable[[dict], str]]] = {
    "clip": (("clip_low", "clip_high"), lambda s: f"{s['clip_low']:g} / {s['clip_high']:g}"),
    "mean": (("aggregation",), lambda s: s["aggregation"]),
    "KL": (
        ("reference_kl_coef",),
        lambda s: f"{s['reference_kl_coef']:g}" if s["reference_kl_coef"] else OFF,
    ),
    "dynamic": (("dynamic_sampling",), lambda s: "yes" if s["dynamic_sampling"] else OFF),
    "visual": (
        ("utility", "beta"),
        lambda s: OFF if s["utility"] == "none" else f"{s['utility']}, beta {s['beta']:g}",
    ),
    "replay": (("replay", "replay_share"), lambda s: f"{s['replay_share']:.0%}" if s["replay"] else OFF),
    "anchor": (
        ("anchor_use", "anchor_source"),
        lambda s: OFF if s["anchor_use"] == "none" else f"{s['anchor_use']}, {s['anchor_source']}",
    ),
}
"""Column -> the settings it covers, and how it shows them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="list the settings of this method; also package.module:name"
    )
    parser.add_argument("--json", action="store_true", help="JSON instead of text")


def run(args: argparse.Namespace) -> int:
    chosen = list(PRESETS.values()) if args.name is None else [find_method(args.name)]
    if args.json:
        objects = [_as_json(method) for method in chosen]
        print(json.dumps(objects if args.name is None else objects[0], indent=2))
    elif args.name is None:
        _print_tables()
    else:
        print("\n".join(_listing(chosen[0])))
    return 0


def turned_on(method: Method) -> dict[str, object]:
    """The settings in which a method differs from DAPO, the default of every part."""
    defaults = Method("", "").settings()
    return {name: value for name, value in method.settings().items() if value != defaults.get(name)}


def _print_tables() -> None:
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, MIN_WIDTH)
    covered = {name for names, _ in COLUMNS.values() for name in names}
    table = Table(box=box.SIMPLE, pad_edge=False, show_edge=False)
    for title in ("method", *COLUMNS, FURTHER):
        table.add_column(title, no_wrap=title != FURTHER and console.width >= MIN_WIDTH)
    for title, names in GROUPS.items():
        table.add_row(title, style="bold")
        for method in (PRESETS[name] for name in names):
            cells = [write(method.settings()) for _, write in COLUMNS.values()]
            further = {name: value for name, value in turned_on(method).items() if name not in covered}
            table.add_row(
                f"  {method.name}", *cells, ", ".join(f"{n} {spell(v)}" for n, v in further.items()) or OFF
            )
        table.add_section()
    console.print(table)
    console.print("`pivot methods NAME` explains a method and lists its settings.")


def _listing(method: Method) -> list[str]:
    """The summary, then part by part the settings that can be changed; `*` marks those that differ from DAPO's."""
    lines = [f"{method.name}: {method.summary}", "(* differs from DAPO, the default of every part)"]
    changed, own = turned_on(method), method.own_settings()
    for part, found in method_fields(method, "method."):
        mine = [info for info in found if info.path.removeprefix("method.") in own]
        lines += ["", f"{part.__name__}: {section_doc(part)}"] if mine else []
        for info in mine:
            head, *doc = describe_field(info)
            is_changed = info.path.removeprefix("method.") in changed
            lines += [("*" if is_changed else " ") + head[1:], *doc]
    return lines


def _as_json(method: Method) -> dict[str, object]:
    return {
        "name": method.name,
        "summary": method.summary,
        "turns_on": turned_on(method),
        "fields": method_to_dict(method),
    }
