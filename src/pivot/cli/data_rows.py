"""How `pivot data` shows rows: as a table, or one JSON object each."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from pivot.console import Console
from pivot.data import DataSet, SkippedRow, images, template
from pivot.terminal import printable
from pivot.types import ImageSource, Prompt

_CELL = 300
"""Characters of a cell of the table; --json has all of them."""


def describe(row: Prompt | SkippedRow) -> dict[str, Any]:
    """A row as one JSON object: `id`, `prompt`, `images`, `answer`, `category`, `skipped`."""
    prompt = row if isinstance(row, Prompt) else row.prompt
    sizes = [_size(source) for source in row.images] if isinstance(row, Prompt) else []
    return {
        "id": row.id,
        "prompt": None if prompt is None else whole_text(prompt),
        "images": {"number": len(sizes), "sizes": sizes},
        "answer": None if prompt is None else prompt.answer,
        "category": None if prompt is None else prompt.task,
        "skipped": None if isinstance(row, Prompt) else row.reason,
    }


def _size(source: ImageSource) -> list[int]:
    return list(images.check(source) if isinstance(source, images.ReadableImage) else source.open().size)


def whole_text(prompt: Prompt) -> str:
    """Everything the model reads, in the chat format of the Qwen-VL family; an image is one `<|image_pad|>`.

    Without a system message the model's chat template may add its own.
    """
    turn = "".join(
        segment if isinstance(segment, str) else "<|vision_start|><|image_pad|><|vision_end|>"
        for segment in template.segments(prompt)
    )
    system = template.system_text(prompt)
    first = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
    return f"{first}<|im_start|>user\n{turn}<|im_end|>\n<|im_start|>assistant\n"


def print_table(data: DataSet, shown: int) -> None:
    console = Console()
    table = Table(title=Text(printable(f"{data.name}, {data.split}")), show_lines=True)
    for heading in ("id", "question", "images", "answer", "category", "skipped"):
        table.add_column(heading, overflow="fold")
    for row in data.rows[:shown]:
        table.add_row(*(Text(printable(cell)) for cell in _cells(row)))
    console.print(table)
    example = next((row for row in data.rows if isinstance(row, Prompt)), None)
    if example is not None:
        console.print("The complete text that the model reads, for the first row:", style="bold")
        console.print(Text(printable(whole_text(example))), soft_wrap=True)
    if len(data.rows) > shown:
        console.print(f"{shown} of {len(data.rows):,} rows are shown; --limit N shows N, --json shows all.")
    if data.recognised:
        console.print(Text(printable(f"Recognised as {data.recognised}.")))
    console.print(Text(printable(data.summary())))


def _cells(row: Prompt | SkippedRow) -> tuple[str, ...]:
    known = describe(row)
    prompt = row if isinstance(row, Prompt) else row.prompt
    question = "" if prompt is None else prompt.question
    sizes = ", ".join(f"{width} x {height}" for width, height in known["images"]["sizes"])
    cells = (row.id, question, sizes or "none", known["answer"], known["category"], known["skipped"])
    return tuple(_short(cell or "") for cell in cells)


def _short(text: str) -> str:
    return text if len(text) <= _CELL else f"{text[:_CELL]}... ({len(text):,} characters)"
