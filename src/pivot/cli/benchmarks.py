"""`pivot benchmarks`: the known benchmarks and training sets, and the rows that each was tested on."""

from __future__ import annotations

import argparse
import json
import shutil
import textwrap
from typing import Any

from pivot.data import TRAINING_SETS, Format
from pivot.evaluation.benchmarks import BENCHMARKS, GROUPS, Benchmark

WIDEST = 100
"""Columns of text; fewer on a narrower terminal."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object per set")


def run(args: argparse.Namespace) -> int:
    known = [describe(one) for one in (*TRAINING_SETS.values(), *BENCHMARKS.values())]
    if args.json:
        for one in known:
            print(json.dumps(one, ensure_ascii=False))
        return 0
    for one in known:
        print(entry(one), end="\n\n")
    for group, names in GROUPS.items():
        print(_wrapped(f"--benchmarks {group}: {', '.join(names)}", "  "))
    print("`pivot data NAME` shows the rows of a set.")
    return 0


def entry(known: dict[str, Any]) -> str:
    """A set as a few lines of text."""
    rows = "?" if known["rows"] is None else f"{known['rows']:,}"
    source = ", ".join(dict.fromkeys(filter(None, (known["hub_id"], known["config"], known["split"]))))
    facts = {
        "source": source,
        "answers": known["matching"],
        "tested on": known["tested_on"],
        "note": known["note"],
    }
    lines = [f"{known['name']:<16} {known['use']}, {rows} rows"]
    lines += [_wrapped(f"  {name:<10} {fact}", " " * 13) for name, fact in facts.items() if fact]
    return "\n".join(lines)


def _wrapped(text: str, indent: str) -> str:
    # One column less than there are: some terminals break a full line.
    width = min(shutil.get_terminal_size().columns, WIDEST) - 1
    return textwrap.fill(text, width, subsequent_indent=indent, break_on_hyphens=False)


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
    """The groups of `pivot eval --benchmarks` that it belongs to."""
    return [group for group, names in GROUPS.items() if isinstance(known, Benchmark) and known.name in names]


def _use(known: Format) -> str:
    if not isinstance(known, Benchmark):
        return "training"
    return "out of domain" if known.name in GROUPS["ood"] else "benchmark"
