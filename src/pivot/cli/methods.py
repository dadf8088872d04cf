"""`pivot methods [NAME]`: the methods there are, and what each is composed of."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Callable, Iterator

from pivot.cli.options import add_plugins
from pivot.config.describe import describe_field, spell
from pivot.config.methods import find_method, method_to_dict
from pivot.config.schema import method_fields, section_doc
from pivot.console import Console
from pivot.method import PRESETS, Method
from pivot.method.presets import GROUPS, MODULES

OFF = "-"
WIDTH = 100
"""Columns of the table, unless the terminal is narrower."""


def _loss(s: dict) -> str:
    if s["policy_loss"] == "clip":
        return f"{s['clip_low']:g} / {s['clip_high']:g}"
    bounds = (
        ("weight_floor", "weight_cap") if s["policy_loss"] == "cispo" else ("gate_positive", "gate_negative")
    )
    return f"{s['policy_loss']} {s[bounds[0]]:g} / {s[bounds[1]]:g}"


def _anchor(s: dict) -> str:
    if s["anchor_use"] == "none":
        return OFF
    return s["anchor_use"] + (" (expert)" if s["anchor_source"] == "expert" else "")


LOSSES = (
    "policy_loss",
    "clip_low",
    "clip_high",
    "weight_floor",
    "weight_cap",
    "gate_positive",
    "gate_negative",
)
COLUMNS: dict[str, tuple[tuple[str, ...], Callable[[dict], str]]] = {
    "clip": (LOSSES, _loss),
    "mean": (("aggregation",), lambda s: s["aggregation"]),
    "KL": (
        ("reference_kl_coef",),
        lambda s: f"{s['reference_kl_coef']:g}" if s["reference_kl_coef"] else OFF,
    ),
    "filter": (("dynamic_sampling",), lambda s: "yes" if s["dynamic_sampling"] else OFF),
    "visual": (
        ("utility", "beta"),
        lambda s: OFF if s["utility"] == "none" else f"{s['utility']} {s['beta']:g}",
    ),
    "replay": (("replay", "replay_share"), lambda s: f"{s['replay_share']:.0%}" if s["replay"] else OFF),
    "anchor": (("anchor_use", "anchor_source"), _anchor),
}
"""Column -> the settings it covers, and how it shows them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="list the settings of this method; also FILE.py:NAME or MODULE:NAME",
    )
    add_plugins(parser)
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
    width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    for line, style in _table(width):
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def _table(width: int) -> Iterator[tuple[str, str | None]]:
    """Lines and their style: a row per method, and under it what the columns do not show."""
    covered = {name for names, _ in COLUMNS.values() for name in names}
    rows = {
        method.name: [f"  {method.name}", *(write(method.settings()) for _, write in COLUMNS.values())]
        for method in PRESETS.values()
    }
    heading = ["method", *COLUMNS]
    widths = [max(len(row[i]) for row in (heading, *rows.values())) for i in range(len(heading))]

    def joined(cells: list[str]) -> str:
        return "  ".join(cell.ljust(size) for cell, size in zip(cells, widths, strict=True)).rstrip()

    yield joined(heading), "bold"
    for title, names in GROUPS.items():
        yield "", None
        yield title, "bold"
        for name in names:
            further = {key: v for key, v in turned_on(PRESETS[name]).items() if key not in covered}
            words = ", ".join(f"{key} {spell(value)}" for key, value in further.items())
            indent = " " * (widths[0] + 2)
            yield joined(rows[name]), None
            for line in textwrap.wrap(words, width, initial_indent=indent, subsequent_indent=indent):
                yield line, "dim"
    yield "", None
    for line in (
        "`pivot methods NAME` explains a method and lists its settings; docs/methods.md has all of them.",
        f"--method NAME+MODULE adds to any of them: {', '.join(MODULES)}. Example: --method gspo+pivot",
    ):
        yield line, None


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
