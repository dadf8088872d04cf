"""What is shown when a run is over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.table import Table


def before_after_table(run: Path) -> Table | None:
    """Accuracy before and after training on every set, with intervals; None where nothing was measured."""
    path = run / "eval" / "scores.json"
    if not path.exists():
        return None
    entries = json.loads(path.read_bytes())["evaluations"]
    samples = max((e["samples"] for e in entries), default=0)
    table = Table(title=f"accuracy@{samples}, 95% interval over prompts", title_justify="left")
    for column in ("set", "images", "before", "after", "change"):
        table.add_column(column, justify="left" if column in ("set", "images") else "right")
    for name, blank in dict.fromkeys((e["name"], e["blank"]) for e in entries):
        moments = {e["when"]: e for e in entries if (e["name"], e["blank"]) == (name, blank)}
        before, after = moments.get("before"), moments.get("after")
        table.add_row(
            name, "blank" if blank else "shown", _cell(before), _cell(after), _change(before, after)
        )
        if not blank:
            for task in (after or before or {}).get("categories", {}):
                table.add_row(f"  {task}", "", _task(before, task), _task(after, task), "", style="dim")
    return table


def _cell(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return "-"
    low, high = entry["interval"]
    return f"{entry['accuracy']:.1%} [{low:.1%}, {high:.1%}]"


def _task(entry: dict[str, Any] | None, task: str) -> str:
    known = (entry or {}).get("categories", {}).get(task)
    return "-" if known is None else f"{known['accuracy']:.1%}"


def _change(before: dict[str, Any] | None, after: dict[str, Any] | None) -> str:
    return "-" if before is None or after is None else f"{after['accuracy'] - before['accuracy']:+.1%}"
