"""What a method costs: seconds a step by phase, and memory."""

from __future__ import annotations

from pivot.report.groups import Group
from pivot.report.panels import PHASES
from pivot.report.tables import Column, Row, Table, Value


def overhead_table(groups: list[Group], baseline: Group | None) -> Table | None:
    """Seconds a step, whole and by phase, relative to the baseline; the memory of buffer and process.

    Columns that no group measured are left out; None where no group measured its time.
    """
    timed = [group for group in groups if group.mean("time/step") is not None]
    if not timed:
        return None
    base = None if baseline is None else baseline.mean("time/step")
    columns: dict[Column, list[Value]] = {
        Column("s / step", best=None, form=".3g"): [group.mean("time/step") for group in timed],
        Column("Δ, %", best=None, form="+.1f"): [None if g is baseline else _gain(g, base) for g in timed],
    }
    for phase in PHASES:
        columns[Column(f"{phase}, s", best=None, form=".3g")] = [
            group.mean(f"time/{phase}") for group in timed
        ]
    columns[Column("buffer, MB", best=None)] = [group.last("buffer/megabytes") for group in timed]
    columns[Column("peak memory, GB", best=None)] = [group.last("memory/peak_gb") for group in timed]
    measured = {column: values for column, values in columns.items() if any(v is not None for v in values)}
    rows = [Row(g.label, tuple(values[i] for values in measured.values())) for i, g in enumerate(timed)]
    caption = "Overhead: seconds a step, mean over steps and runs" + (
        f"; Δ relative to {baseline.label}" if baseline else ""
    )
    return Table("overhead", caption, "Method", tuple(measured), tuple(rows))


def _gain(group: Group, base: float | None) -> float | None:
    seconds = group.mean("time/step")
    return 100 * (seconds / base - 1) if base and seconds is not None else None
