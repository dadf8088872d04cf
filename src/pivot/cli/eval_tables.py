"""The tables of `pivot eval`: one model's scores in the terminal, several models in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table as TerminalTable

from pivot.evaluation.settings import comparability_notes
from pivot.report import tables

Entry = dict[str, Any]


def terminal_table(model: str, entries: list[Entry]) -> TerminalTable:
    """One row per evaluation, with its categories and the benchmark's own metrics below it."""
    num_samples = entries[0]["samples"]
    title = f"{model}: accuracy@{num_samples} in %, 95% interval over prompts"
    table = TerminalTable(title=title, title_justify="left")
    table.add_column("set", overflow="fold")
    for heading in ("prompts", "acc.", "interval", f"pass@{num_samples}", "format", "tokens"):
        table.add_column(heading, justify="right", no_wrap=True)
    for entry in entries:
        low, high = (100 * bound for bound in entry["interval"])
        table.add_row(
            f"{entry['name']}{', blank' if entry['blank'] else ''}",
            str(entry["prompts"]),
            _percent(entry["accuracy"]),
            f"{low:.1f}-{high:.1f}",
            _percent(entry["pass_at_k"][str(num_samples)]),
            _percent(entry["format"]),
            f"{entry['length']:.1f}",
        )
        categories = entry["categories"] if len(entry["categories"]) > 1 else {}
        for name, found in categories.items():
            table.add_row(f"  {name}", str(found["prompts"]), _percent(found["accuracy"]), style="dim")
        for name, value in entry.get("metrics", {}).items():
            text = str(value) if isinstance(value, int) else _percent(value)
            table.add_row(f"  {name}", "", text, style="dim")
    return table


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def write_comparison(entries: dict[str, list[Entry]], folder: Path) -> list[str]:
    """Write the table of all models, and one with blank images; returns them as Markdown."""
    found = [comparison(entries, blank=False), comparison(entries, blank=True)]
    written = [table for table in found if table is not None]
    tables.write_tables(written, folder)
    return [tables.to_markdown(table) for table in written]


def comparison(entries: dict[str, list[Entry]], *, blank: bool) -> tables.Table | None:
    """One row per model, one column per set and their mean; nothing is marked as best with blank images."""
    shown = {
        model: {entry["name"]: entry for entry in found if entry["blank"] == blank}
        for model, found in entries.items()
    }
    scores = {
        model: {name: 100.0 * entry["accuracy"] for name, entry in found.items()}
        for model, found in shown.items()
    }
    names = list(dict.fromkeys(name for found in scores.values() for name in found))
    if not names:
        return None
    with_mean = len(names) > 1
    best = None if blank else "high"
    columns = [tables.Column(name, best) for name in [*names, *["Avg."] * with_mean]]
    notes = comparability_notes(
        [{name: [entry] for name, entry in found.items()} for found in shown.values()]
    )
    rows = []
    for (model, found), note in zip(scores.items(), notes, strict=True):
        values = [found[name] for name in names]
        means = [sum(values) / len(values)] if with_mean else []
        rows.append(tables.Row(model, (*values, *means), note=note))
    num_samples = next(iter(entries.values()))[0]["samples"]
    images = ", blank images" if blank else ""
    return tables.Table(
        "comparison-blank" if blank else "comparison",
        f"Accuracy@{num_samples}, %{images}",
        "Model",
        tuple(columns),
        tuple(rows),
    )
