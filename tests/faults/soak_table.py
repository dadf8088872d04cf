"""The one table that `make soak` ends with: what was tried, how much of it, and how it ended.

Tests call `record`; `pytest_terminal_summary` of conftest.py prints the rows in the order of `KINDS`.
"""

KINDS = ("kills", "damages", "engines", "load", "hostile answers", "hostile rows", "fuzzing", "search")
_rows: list[tuple[str, str, str]] = []


def record(kind: str, what: str, outcome: str) -> None:
    """Add a row."""
    assert kind in KINDS
    _rows.append((kind, what, outcome))


def table() -> str:
    """The rows as Markdown; empty without rows."""
    ordered = sorted(_rows, key=lambda row: KINDS.index(row[0]))
    lines = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in ordered]
    return "\n".join(["| kind | what | outcome |", "|---|---|---|", *lines]) if lines else ""
