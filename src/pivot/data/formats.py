"""What a data set is: the user's request, its columns, and what a row becomes."""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pivot.data.images import MAX_PIXELS
from pivot.errors import UserError
from pivot.types import Prompt


@dataclass(frozen=True)
class DataSpec:
    """A data set as the user requests it. Not in the paper.

    Example:
        DataSpec("geometry3k", split="train")
        DataSpec("custom", path="problems.jsonl", problem_column="question", id_column="qid")
    """

    name: str
    """A known set (geometry3k, virl39k, custom), an `owner/name` of the Hugging Face hub, or a local path."""
    split: str | None = None
    """Which split; the set's default if not given."""
    path: str | None = None
    """A local parquet, Arrow, JSONL, JSON or CSV file, or a folder of them, instead of a download."""
    config: str | None = None
    """The configuration of a hub set that has several."""
    revision: str | None = None
    """The hub revision (commit, branch or tag)."""
    image_column: str | None = None
    """The column with the image or images; recognised if not given, empty for a text-only set."""
    problem_column: str | None = None
    """The column with the question or a conversation; recognised if not given."""
    answer_column: str | None = None
    """The column with the ground truth; recognised if not given."""
    id_column: str | None = None
    """The column with the row's id; `id` in a custom set. Rows without one get an id from their content."""
    category_column: str | None = None
    """The column that groups rows for scores per category."""
    limit: int | None = None
    """Read at most this many rows."""
    bad_rows: Literal["skip", "refuse"] = "skip"
    """Unusable rows are skipped and counted, or refused with an error that names them."""
    check_images: Literal["quick", "full"] = "quick"
    """Check images at load by header, checksum and end marker (quick) or by decoding each one (full)."""
    rows: tuple[Mapping[str, Any], ...] | None = None
    """Rows in memory instead of files."""
    max_pixels: int = MAX_PIXELS
    """Images with more pixels are not decoded."""
    allow_missing_images: bool = False
    """Keep rows whose image is missing, as text-only prompts."""
    image_root: str | None = None
    """The folder that image paths are relative to; the folder of the rows if not given."""
    allow_absolute_paths: bool = False
    """Allow rows to name images anywhere on this machine."""
    allow_urls: bool = False
    """Download images that rows name by an http or https URL; public addresses only."""
    point_overlay: bool = False
    """InterGPS folders: use the diagram with points and letters drawn over it (`img_diagram_point.png`)."""

    def __post_init__(self) -> None:
        if self.bad_rows not in ("skip", "refuse"):
            raise UserError(f"bad_rows is {self.bad_rows!r}; choose 'skip' or 'refuse'.")
        if self.check_images not in ("quick", "full"):
            raise UserError(f"check_images is {self.check_images!r}; choose 'quick' or 'full'.")
        if self.limit is not None and self.limit < 1:
            raise UserError(f"limit is {self.limit}; it must be at least 1, or omitted to read all rows.")

    @property
    def names_columns(self) -> bool:
        """Whether the user gave column names that differ from the defaults, which override a known set's layout."""
        given = (self.image_column, self.problem_column, self.answer_column)
        usual = ("images", "problem", "answer")
        return any(name is not None and name != default for name, default in zip(given, usual, strict=True))


@dataclass(frozen=True)
class SkippedRow:
    """A row that is not used, and the reason."""

    id: str
    reason: str
    broken: bool = True
    """False if the row is valid but not part of this set (a text-only version, for example)."""
    prompt: Prompt | None = None
    """The prompt without its images, if the rest of the row could be read."""


@dataclass(frozen=True)
class DataSet:
    """The rows of a data set in order: prompts and skipped rows."""

    name: str
    split: str
    rows: tuple[Prompt | SkippedRow, ...]
    num_duplicates: int = 0
    """Rows with an id that occurred before; `#2`, `#3`, ... is appended to it."""
    warnings: tuple[str, ...] = field(default=())
    """What the user should know before spending GPU hours, one sentence each."""
    recognised: str = ""
    """The format of the rows and the columns that are used."""

    @property
    def prompts(self) -> list[Prompt]:
        return [row for row in self.rows if isinstance(row, Prompt)]

    @property
    def skipped(self) -> list[SkippedRow]:
        return [row for row in self.rows if isinstance(row, SkippedRow)]

    def usable(self) -> list[Prompt]:
        """The prompts; a UserError if there are none."""
        prompts = self.prompts
        if not prompts:
            raise UserError(f"{self.name}/{self.split} has no usable row: {self.summary()}")
        return prompts

    def summary(self) -> str:
        """One sentence: how many rows are used, and how many are skipped for each reason."""
        counts = Counter(row.reason.split(" (")[0] for row in self.skipped)
        used = f"{len(self.prompts):,} of {len(self.rows):,} rows are used"
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in counts.most_common())
        duplicates = f"; {self.num_duplicates:,} repeated ids are numbered" if self.num_duplicates else ""
        texts = sum(not prompt.images for prompt in self.prompts)
        alone = f", {texts:,} of them without an image" if texts else ""
        return f"{used}{alone}{'; skipped: ' + reasons if reasons else ''}{duplicates}."


def is_unicode(text: str) -> bool:
    """False for lone surrogates, which no tokenizer or file can encode."""
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


class BadRow(Exception):
    """A row that cannot be used; the message is the reason."""


class NotIncluded(Exception):
    """A valid row that is not part of the set; the message is the reason."""


class RowReader:
    """Typed access to the columns of one row; raises `BadRow` for missing or wrong values."""

    def __init__(self, values: Mapping[str, Any], spec: DataSpec) -> None:
        self.values = values
        self.spec = spec

    def __getitem__(self, column: str) -> Any:
        """The value of a column; `a.b` is field b of an object in column a. None if there is none."""
        if column in self.values or "." not in column:
            return self.values.get(column)
        value: Any = self.values
        for name in column.split("."):
            if isinstance(value, list) and name.isdecimal() and int(name) < len(value):
                value = value[int(name)]
            else:
                value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def text(self, column: str) -> str:
        """The text of a required column; numbers are converted."""
        value = self[column]
        if value is None or (isinstance(value, str) and not value.strip()):
            raise BadRow(f"{column} missing")
        return self._written(column, value)

    def optional_text(self, column: str) -> str:
        value = self[column]
        return "" if value is None else self._written(column, value)

    def texts(self, column: str) -> list[str]:
        """A list of texts; empty if the column is missing."""
        value = self[column]
        if value is None:
            return []
        if not isinstance(value, list):
            raise BadRow(f"{column} has the wrong type ({type(value).__name__} instead of a list)")
        return [self._written(column, item) for item in value]

    def images(self, column: str) -> list[Any]:
        """The cells of an image column, which holds one image, a list or nothing."""
        value = self[column]
        return value if isinstance(value, list) else [value]

    @staticmethod
    def _written(column: str, value: Any) -> str:
        if isinstance(value, str):
            if not is_unicode(value):
                raise BadRow(f"{column} is not valid Unicode ({value[:40]!r})")
            return value
        if isinstance(value, float) and math.isfinite(value):
            return str(int(value)) if value.is_integer() else str(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        raise BadRow(f"{column} has the wrong type ({type(value).__name__} instead of text)")


@dataclass
class Draft:
    """A row on its way to a prompt, before its images and image marks are checked."""

    question: str
    answer: str
    images: list[Any] = field(default_factory=list)
    """Cells as in the source: bytes, {"bytes", "path"}, a path, or None for a missing image."""
    task: str = ""
    system: str = ""
    """The row's own system message."""
    columns: dict[str, Any] = field(default_factory=dict)
    """Added to the row's own columns, which they override."""


@dataclass(frozen=True)
class Layout:
    """A set of columns and how they become a draft."""

    columns: tuple[str, ...]
    """All are required for the layout to apply."""
    draft: Callable[[RowReader], Draft]
    id_columns: tuple[str, ...] = ()
    """Joined, they are the row's own id; rows without them get an id from their content."""
    described: str = ""
    """The format and the columns that are used, for display."""

    def own_id(self, row: RowReader) -> str | None:
        """The row's own id, or None; raises `BadRow` if it is not valid Unicode."""
        values = [row[column] for column in self.id_columns]
        if not values or any(value is None or str(value).strip() == "" for value in values):
            return None
        name = "/".join(str(value).strip().replace(" ", "-") for value in values)
        if not is_unicode(name):
            raise BadRow(f"id is not valid Unicode ({name[:40]!r})")
        return name


@dataclass(frozen=True, kw_only=True)
class Format:
    """A known data set: where it is, and the layouts of its rows."""

    name: str
    hub_id: str
    split: str
    """The default split."""
    layouts: tuple[Layout, ...]
    """The first one whose columns are all present is used; empty: recognised by its columns."""
    config: str | None = None
    files: tuple[str, ...] = ()
    """File patterns of the hub set, if they do not follow from the split's name."""
    copies: tuple[str, ...] = ()
    """Other hub ids with the same rows, possibly in another layout."""
    expected: Mapping[str, int] = field(default_factory=dict)
    """Split -> number of usable rows in the complete set."""
    matching: str = ""
    """How its answers are matched, for display."""
    known_from: str = ""
    """The source for the hub id, the columns and the number of rows."""
    tested_on: str = ""
    """The rows this format is tested on: real ones from a sample, or hand-made ones in the documented columns."""
    note: str = ""

    def layout(self, columns: tuple[str, ...], spec: DataSpec) -> Layout:
        """The layout that fits these columns; a UserError names the missing ones."""
        for layout in self.layouts:
            if set(layout.columns) <= set(columns):
                if spec.id_column and not has_column(columns, spec.id_column):
                    raise UserError(missing_columns(self.name, (spec.id_column,), columns))
                return replace(layout, id_columns=(spec.id_column,)) if spec.id_column else layout
        raise UserError(missing_columns(self.name, self.layouts[0].columns, columns))


def has_column(columns: tuple[str, ...], name: str) -> bool:
    """Whether a column is there; of `a.b`, the column a."""
    return name in columns or name.partition(".")[0] in columns


def missing_columns(name: str, wanted: tuple[str, ...], present: tuple[str, ...]) -> str:
    """One sentence: the missing columns, the present ones, and the closest matches."""
    if not present:
        return (
            f"{name}: no row could be read; rows are JSON objects, lines of a CSV under a header, or a table."
        )
    missing = [column for column in wanted if not has_column(present, column)]
    close = {column: difflib.get_close_matches(column, present, n=1, cutoff=0.5) for column in missing}
    hints = [f"{found[0]!r} for {column!r}" for column, found in close.items() if found]
    nearest = f" Did you mean {' and '.join(hints)}?" if hints else ""
    return (
        f"{name}: column{'s' * (len(missing) > 1)} {', '.join(map(repr, missing))} missing; the file has "
        f"{', '.join(map(repr, present))}.{nearest} Name yours with --set data.problem_column=NAME, "
        "and likewise data.answer_column, data.image_column and data.id_column."
    )


def boxed_content(answer: str) -> str:
    """The content of an answer that is one `\\boxed{...}`; any other answer unchanged."""
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
