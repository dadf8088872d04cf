"""`pivot benchmarks`: the benchmarks and training sets that are known, and on which rows each was tested."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rich.console import Console
from rich.table import Table

from pivot.data import TRAINING_SETS, Format
from pivot.evaluate.benchmarks import BENCHMARKS, GROUPS, Benchmark

_HEADINGS = ("name", "use", "hub id", "split", "rows", "answers are matched by", "tested on")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON line a set instead of a table")


def run(args: argparse.Namespace) -> int:
    known = [describe(one) for one in (*TRAINING_SETS.values(), *BENCHMARKS.values())]
    if args.json:
        for one in known:
            print(json.dumps(one, ensure_ascii=False))
        return 0
    table = Table(show_lines=True)
    for heading in _HEADINGS:
        table.add_column(heading, overflow="fold")
    for one in known:
        hub = one["hub_id"] if one["config"] is None else f"{one['hub_id']}\n{one['config']}"
        rows = "?" if one["rows"] is None else f"{one['rows']:,}"
        table.add_row(one["name"], one["use"], hub, one["split"], rows, one["matching"], one["tested_on"])
    console = Console()
    console.print(table)
    for one in known:
        if one["note"]:
            console.print(f"{one['name']}: {one['note']}", highlight=False)
    for group, names in GROUPS.items():
        console.print(f"--benchmarks {group}: {', '.join(names)}", highlight=False, soft_wrap=True)
    console.print("`pivot data NAME` shows a set's rows as they will be used.", highlight=False)
    return 0


def describe(known: Format) -> dict[str, Any]:
    """A set as one JSON object."""
    bundled = known if isinstance(known, Benchmark) and known.papo_split else None
    return {
        "name": known.name,
        "use": _use(known),
        "groups": _groups(known),
        "hub_id": known.hub_id,
        "config": known.config,
        "split": known.split,
        "rows": known.expected.get(known.split),
        "columns": list(known.layouts[0].columns),
        "matching": known.matching,
        "known_from": known.known_from,
        "tested_on": known.tested_on,
        "papo_eval": {"split": bundled.papo_split, "rows": bundled.papo_rows} if bundled else None,
        "copies": list(known.copies),
        "note": known.note,
    }


def _groups(known: Format) -> list[str]:
    """The groups of `--benchmarks` that it belongs to."""
    return [group for group, names in GROUPS.items() if isinstance(known, Benchmark) and known.name in names]


def _use(known: Format) -> str:
    if not isinstance(known, Benchmark):
        return "training"
    return "out of domain" if known.name in GROUPS["ood"] else "benchmark"
