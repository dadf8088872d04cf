"""How the rows of one source become prompts: its columns, and a function from a row to a draft."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pivot.data.spec import DataSpec
from pivot.errors import UserError


class BadRow(Exception):
    """A row that cannot be used; the message is the reason."""


class NotIncluded(Exception):
    """A sound row that is no part of the set; the message is the reason."""


class RowReader:
    """One row's columns, with typed access that raises `BadRow` for what is not as documented."""

    def __init__(self, values: Mapping[str, Any], spec: DataSpec) -> None:
        self.values = values
        self.spec = spec

    def __getitem__(self, column: str) -> Any:
        return self.values.get(column)

    def text(self, column: str) -> str:
        """The text of a column that must have one; numbers are written out."""
        value = self.values.get(column)
        if value is None or (isinstance(value, str) and not value.strip()):
            raise BadRow(f"{column} missing")
        return self._written(column, value)

    def optional_text(self, column: str) -> str:
        value = self.values.get(column)
        return "" if value is None else self._written(column, value)

    def texts(self, column: str) -> list[str]:
        """A list of texts; a missing column is an empty list."""
        value = self.values.get(column)
        if value is None:
            return []
        if not isinstance(value, list):
            raise BadRow(f"{column} has the wrong type ({type(value).__name__} instead of a list)")
        return [self._written(column, item) for item in value]

    def images(self, column: str) -> list[Any]:
        """The cells of an image column that holds one image, a list, or nothing."""
        value = self.values.get(column)
        return value if isinstance(value, list) else [value]

    @staticmethod
    def _written(column: str, value: Any) -> str:
        if isinstance(value, str):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
        raise BadRow(f"{column} has the wrong type ({type(value).__name__} instead of text)")


@dataclass
class Draft:
    """A row in the form of a prompt, before its images and marks are checked."""

    question: str
    answer: str
    images: list[Any] = field(default_factory=list)
    """Cells as in the source: bytes, {"bytes", "path"}, a path, or None for an image that is not there."""
    task: str = ""
    columns: dict[str, Any] = field(default_factory=dict)
    """Added to the row's own columns; wins over them."""


@dataclass(frozen=True)
class Layout:
    """Columns that belong together, and what they mean."""

    columns: tuple[str, ...]
    """All must be there for the layout to apply."""
    draft: Callable[[RowReader], Draft]
    id_columns: tuple[str, ...] = ()
    """Together they are the row's own id; rows without them are known by their content."""

    def own_id(self, row: RowReader) -> str | None:
        values = [row[column] for column in self.id_columns]
        if not values or any(value is None or str(value).strip() == "" for value in values):
            return None
        return "/".join(str(value).strip().replace(" ", "-") for value in values)


@dataclass(frozen=True, kw_only=True)
class Format:
    """A known data set: where it is, and in which layouts its rows come."""

    name: str
    hub_id: str
    split: str
    """The split that is meant when none is named."""
    layouts: tuple[Layout, ...]
    """The first one whose columns are all there is used."""
    config: str | None = None
    files: tuple[str, ...] = ()
    """File patterns of the hub set, where they do not follow from the split's name."""
    copies: tuple[str, ...] = ()
    """Other hub ids that hold the same rows, perhaps in another layout."""
    expected: Mapping[str, int] = field(default_factory=dict)
    """Split -> rows that are used when everything is there."""
    matching: str = ""
    """How its answers are matched, in words."""
    known_from: str = ""
    """Where the hub id, the columns and the number of rows are known from."""
    tested_on: str = ""
    """On which rows this file is tested: real ones of a sample, or hand-made ones in the documented columns."""
    note: str = ""

    def layout(self, columns: tuple[str, ...], spec: DataSpec) -> Layout:
        """The layout that fits these columns, or one sentence about what is missing."""
        layouts = (column_layout(spec),) if spec.names_columns else self.layouts
        for layout in layouts:
            if set(layout.columns) <= set(columns):
                if spec.id_column and spec.id_column not in columns:
                    raise UserError(missing_columns(self.name, (spec.id_column,), columns))
                return replace(layout, id_columns=(spec.id_column,)) if spec.id_column else layout
        raise UserError(missing_columns(self.name, layouts[0].columns, columns))


def missing_columns(name: str, wanted: tuple[str, ...], present: tuple[str, ...]) -> str:
    """One sentence: which columns are missing, which are there, and the nearest."""
    missing = [column for column in wanted if column not in present]
    close = {column: difflib.get_close_matches(column, present, n=1, cutoff=0.5) for column in missing}
    hints = [f"{found[0]!r} for {column!r}" for column, found in close.items() if found]
    nearest = f" Did you mean {' and '.join(hints)}?" if hints else ""
    return (
        f"{name}: column{'s' * (len(missing) > 1)} {', '.join(map(repr, missing))} missing; the file has "
        f"{', '.join(map(repr, present)) or 'no columns'}.{nearest} Name yours with --image-column, "
        "--problem-column, --answer-column and --id-column."
    )


def column_layout(spec: DataSpec) -> Layout:
    """Plain columns with names of the user's choice."""
    image = "images" if spec.image_column is None else spec.image_column
    problem = spec.problem_column or "problem"
    answer = spec.answer_column or "answer"

    def draft(row: RowReader) -> Draft:
        cells = row.images(image) if image else []
        return Draft(
            question=row.text(problem),
            answer=row.text(answer),
            images=cells,
            task=row.optional_text(spec.category_column) if spec.category_column else "",
        )

    columns = tuple(column for column in (image, problem, answer) if column)
    return Layout(columns, draft, id_columns=(spec.id_column or "id",))


def boxed_content(answer: str) -> str:
    """What a whole-answer `\\boxed{...}` holds; any other answer as it is."""
    text = answer.strip()
    opening = "\\boxed{"
    if not text.startswith(opening):
        return answer
    depth = 1
    for position in range(len(opening), len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[len(opening) : position].strip() if position == len(text) - 1 else answer
    return answer
