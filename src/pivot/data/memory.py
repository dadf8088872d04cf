"""Rows in memory: a list of dictionaries, or anything that yields them, such as a `datasets.Dataset`."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageOps

from pivot.data.sources import RawRow
from pivot.errors import UserError

MEMORY = "memory"
"""`data.train` of a run whose rows were given as Python objects."""
_PNG_MODES = ("1", "L", "LA", "I", "I;16", "P", "RGB", "RGBA")


@dataclass(frozen=True)
class MemoryRows:
    """Rows with the interface of `sources.Rows`; PIL images are encoded, so that ids follow from their content."""

    rows: Sequence[Mapping[str, Any]]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(column for row in self.rows for column in row))

    def count(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[RawRow]:
        for number, row in enumerate(self.rows):
            yield RawRow(number, {column: _encoded(value) for column, value in row.items()})


def as_rows(data: Iterable[Any]) -> list[Mapping[str, Any]]:
    """The rows of a list, a `datasets.Dataset` or another iterable; a UserError if they are not mappings."""
    rows = list(data)
    if not rows:
        raise UserError(
            "data has no rows; give dictionaries such as {'images': [image], 'problem': ..., 'answer': ...}"
        )
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise UserError(
                f"row {number} of data is a {type(row).__name__}, but must be a dictionary of columns"
            )
    return rows


def png_bytes(image: Image.Image) -> bytes:
    """A PIL image as a PNG file, upright."""
    upright = ImageOps.exif_transpose(image)
    if upright.mode not in _PNG_MODES:
        upright = upright.convert("RGB")
    buffer = io.BytesIO()
    upright.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _encoded(value: Any) -> Any:
    """PIL images as bytes, at any depth."""
    if isinstance(value, Image.Image):
        return png_bytes(value)
    if isinstance(value, Mapping):
        return {key: _encoded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encoded(item) for item in value]
    return value
