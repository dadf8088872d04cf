"""Tables as HTML, Markdown, LaTeX and CSV, with the best of a column in bold and the second underlined.

Example:
    rows = (Row("DAPO", (41.6, 46.06)), Row("PIVOT", (43.07, 51.25)))
    table = Table("main", "Accuracy, %", "Method", (Column("Geo3K"), Column("Avg.")), rows)
    print(to_markdown(table))
"""

from __future__ import annotations

import csv
import html
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Value = float | int | str | None
NOTE = "Note"
NOTE_WIDTH = r"p{0.3\linewidth}"
LATEX_ESCAPES = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"±": r"$\pm$", "−": "$-$", "–": "--", "β": r"$\beta$", "λ": r"$\lambda$", "Δ": r"$\Delta$"}
)


@dataclass(frozen=True)
class Column:
    name: str
    best: Literal["high", "low"] | None = "high"
    """Whether high or low is best; None: neither."""
    form: str = ".2f"
    """Format of its numbers."""


@dataclass(frozen=True)
class Row:
    label: str
    values: tuple[Value, ...]
    """One per column; None is an empty cell."""
    spreads: tuple[float | None, ...] = ()
    """Standard deviations over seeds, one per column."""
    ranked: bool = True
    """Whether it can be best or second; the untrained model's row cannot."""
    rule_above: bool = False
    note: str = ""
    """How the row differs from the others; shown in a last column if any row has one."""


@dataclass(frozen=True)
class Table:
    name: str
    """The name of its files."""
    caption: str
    stub: str
    """Heading of the row labels."""
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    @property
    def has_notes(self) -> bool:
        return any(row.note for row in self.rows)


def to_markdown(table: Table) -> str:
    """GitHub's Markdown; second best in `<u>`."""
    lines = [[_markdown(name) for name in _headings(table)]]
    lines.append([":--", *("--:" for _ in table.columns), *[":--"] * table.has_notes])
    marks = {1: "**{}**", 2: "<u>{}</u>"}
    for row, (label, cells) in zip(table.rows, _marked(table), strict=True):
        shown = [marks.get(place, "{}").format(_markdown(text)) for text, place in cells]
        lines.append([_markdown(label), *shown, *[_markdown(row.note)] * table.has_notes])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{_markdown(table.caption)}\n"


def to_latex(table: Table) -> str:
    """A floating table with booktabs rules."""
    marks = {1: r"\textbf{{{}}}", 2: r"\underline{{{}}}"}
    head = " & ".join(rf"\textbf{{{_latex(name)}}}" for name in _headings(table))
    body = []
    for row, (label, cells) in zip(table.rows, _marked(table), strict=True):
        line = [_latex(label), *(marks.get(place, "{}").format(_latex(text)) for text, place in cells)]
        line += [_latex(row.note)] * table.has_notes
        body += [r"\midrule"] * row.rule_above + [" & ".join(line) + r" \\"]
    opening = [
        r"\begin{table}[t]",
        r"\centering",
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}{NOTE_WIDTH * table.has_notes}}}",
        r"\toprule",
    ]
    closing = [r"\bottomrule", r"\end{tabular}", rf"\caption{{{_latex(table.caption)}}}"]
    closing += [rf"\label{{tab:{table.name}}}", r"\end{table}"]
    return "\n".join([*opening, head + r" \\", r"\midrule", *body, *closing]) + "\n"


def to_csv(table: Table) -> str:
    """Numbers without marks, to six significant digits; standard deviations are in their own columns."""
    spread_at = [
        i for i in range(len(table.columns)) if any(_spread(row, i) is not None for row in table.rows)
    ]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [column.name for column in table.columns]
    notes = table.has_notes
    lines: list[list[object]] = [
        [table.stub, *names, *(f"{names[i]} std" for i in spread_at), *[NOTE] * notes]
    ]
    for row in table.rows:
        spreads = [_spread(row, i) for i in spread_at]
        lines.append([row.label, *row.values, *spreads, *[row.note] * notes])
    writer.writerows([_csv_cell(cell) for cell in line] for line in lines)
    return text.getvalue()


def _csv_cell(value: object) -> object:
    """Text that a spreadsheet would run as a formula gets a leading apostrophe; numbers stay numbers."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return (
        f"'{value}"
        if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
        else value
    )


def to_html(table: Table) -> str:
    marks = {1: "<b>{}</b>", 2: "<u>{}</u>"}
    styles = [""] * (1 + len(table.columns)) + [' class="note"']
    head = "".join(
        f'<th scope="col"{style}>{html.escape(name)}</th>'
        for name, style in zip(_headings(table), styles, strict=False)
    )
    body = []
    for row, (label, cells) in zip(table.rows, _marked(table), strict=True):
        line = "".join(
            f"<td>{marks.get(place, '{}').format(html.escape(text))}</td>" for text, place in cells
        )
        line += f'<td class="note">{html.escape(row.note)}</td>' * table.has_notes
        style = ' class="rule"' if row.rule_above else ""
        body.append(f'<tr{style}><th scope="row">{html.escape(label)}</th>{line}</tr>')
    title, colon, rest = table.caption.partition(":")
    caption = f"<caption><b>{html.escape(title)}</b>{html.escape(colon + rest)}</caption>"
    inside = f"{caption}<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody>"
    name = html.escape(table.name)
    return f'<div class="table-wrap"><table class="data" id="table-{name}">{inside}</table></div>'


def write_tables(tables: list[Table], folder: Path) -> None:
    """`NAME.md`, `NAME.tex` and `NAME.csv` of every table."""
    folder.mkdir(parents=True, exist_ok=True)
    for table in tables:
        for ending, write in (("md", to_markdown), ("tex", to_latex), ("csv", to_csv)):
            (folder / f"{table.name}.{ending}").write_text(write(table), encoding="utf-8")


def _headings(table: Table) -> list[str]:
    return [table.stub, *(column.name for column in table.columns), *[NOTE] * table.has_notes]


def _marked(table: Table) -> list[tuple[str, list[tuple[str, int]]]]:
    """(label, [(text, place)]) of every row; place 1 is best, 2 is second, 0 is neither."""
    places = [_places(table, i) for i in range(len(table.columns))]
    return [
        (row.label, [(_text(table, row, i), places[i][r]) for i in range(len(table.columns))])
        for r, row in enumerate(table.rows)
    ]


def _places(table: Table, index: int) -> list[int]:
    """Ranks by the numbers as printed, so that equal ones share a place.

    A single number is not marked, and of two numbers only the best.
    """
    column = table.columns[index]
    printed = [
        float(format(row.values[index], column.form).replace(",", ""))
        if row.ranked and _is_ranked(row.values[index])
        else None
        for row in table.rows
    ]
    distinct = sorted({n for n in printed if n is not None}, reverse=column.best == "high")
    num_ranked = sum(n is not None for n in printed)
    if column.best is None or num_ranked < 2:
        return [0] * len(printed)
    marked = distinct[: 2 if num_ranked > 2 else 1]
    return [1 + marked.index(n) if n in marked else 0 for n in printed]


def _is_ranked(value: Value) -> bool:
    return isinstance(value, int | float)


def _text(table: Table, row: Row, index: int) -> str:
    value, form = row.values[index], table.columns[index].form
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    spread = _spread(row, index)
    beside = "" if spread is None else f" ± {format(spread, form.lstrip('+'))}"
    return format(value, form).replace("-", "−") + beside


def _spread(row: Row, index: int) -> float | None:
    return row.spreads[index] if row.spreads else None


def _markdown(text: str) -> str:
    return html.escape(text, quote=False).replace("|", r"\|").replace("\n", " ")


def _latex(text: str) -> str:
    return text.translate(LATEX_ESCAPES)
