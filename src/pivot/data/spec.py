"""What a user asks for, and what comes back."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from pivot.data.images import MAX_PIXELS
from pivot.errors import UserError
from pivot.types import Prompt


@dataclass(frozen=True)
class DataSpec:
    """A data set as a user names it; none of this is in the paper.

    Example:
        DataSpec("geometry3k", split="train")
        DataSpec("custom", path="problems.jsonl", problem_column="question", id_column="qid")
    """

    name: str
    """A known set (geometry3k, virl39k, custom), an `owner/name` of the Hugging Face hub, or a local path."""
    split: str | None = None
    """Which split; the set's usual one if not given."""
    path: str | None = None
    """A local parquet, JSONL, JSON or Arrow file, or a folder of them, instead of a download."""
    config: str | None = None
    """The configuration of a hub set that has several."""
    revision: str | None = None
    """The hub revision (commit, branch or tag)."""
    image_column: str | None = None
    """The column with the image or images; `images` in a custom set, empty for a text-only set."""
    problem_column: str | None = None
    """The column with the question; `problem` in a custom set."""
    answer_column: str | None = None
    """The column with the ground truth; `answer` in a custom set."""
    id_column: str | None = None
    """The column with the row's own id; `id` in a custom set. Rows without one are known by their content."""
    category_column: str | None = None
    """The column that groups rows for scores a category."""
    limit: int | None = None
    """Read at most this many rows."""
    bad_rows: Literal["skip", "refuse"] = "skip"
    """What happens to rows that cannot be used: left out and counted, or an error that names them."""
    check_images: Literal["quick", "full"] = "quick"
    """Check images by header, checksum and end mark at load, or by decoding each one."""
    max_pixels: int = MAX_PIXELS
    """Images with more pixels are not used."""
    allow_missing_images: bool = False
    """Keep rows whose image is not there, as text-only prompts."""
    absolute_paths: bool = False
    """Let the rows of your own file name images anywhere on this machine."""
    point_overlay: bool = False
    """InterGPS folders: the diagram with points and letters drawn over it (`img_diagram_point.png`)."""

    def __post_init__(self) -> None:
        if self.bad_rows not in ("skip", "refuse"):
            raise UserError(f"bad_rows is {self.bad_rows!r}; it takes 'skip' or 'refuse'.")
        if self.check_images not in ("quick", "full"):
            raise UserError(f"check_images is {self.check_images!r}; it takes 'quick' or 'full'.")
        if self.limit is not None and self.limit < 1:
            raise UserError(f"limit is {self.limit}; it must be at least 1, or left out to read all rows.")

    @property
    def names_columns(self) -> bool:
        """The user gave unusual column names, so that a known set's own layout does not apply."""
        given = (self.image_column, self.problem_column, self.answer_column)
        usual = ("images", "problem", "answer")
        return any(name is not None and name != default for name, default in zip(given, usual, strict=True))


@dataclass(frozen=True)
class SkippedRow:
    """A row that is not used, and why."""

    id: str
    reason: str
    broken: bool = True
    """False where the row is sound but no part of this set (a text-only version, for example)."""
    prompt: Prompt | None = None
    """What the row would have been, where that much could be read."""


@dataclass(frozen=True)
class DataSet:
    """The rows of a data set in their order: prompts, and what was left out."""

    name: str
    split: str
    rows: tuple[Prompt | SkippedRow, ...]
    num_duplicates: int = 0
    """Rows whose id was taken; they carry `#2`, `#3`, ... after it."""
    warnings: tuple[str, ...] = field(default=())
    """Sentences that a user should see before spending GPU hours."""

    @property
    def prompts(self) -> list[Prompt]:
        return [row for row in self.rows if isinstance(row, Prompt)]

    @property
    def skipped(self) -> list[SkippedRow]:
        return [row for row in self.rows if isinstance(row, SkippedRow)]

    def usable(self) -> list[Prompt]:
        """The prompts, or one sentence where there are none."""
        prompts = self.prompts
        if not prompts:
            raise UserError(f"{self.name}/{self.split} has no usable row: {self.summary()}")
        return prompts

    def summary(self) -> str:
        """One sentence: how many rows are used, and how many are left out for which reason."""
        counts = Counter(row.reason.split(" (")[0] for row in self.skipped)
        used = f"{len(self.prompts):,} of {len(self.rows):,} rows are used"
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in counts.most_common())
        duplicates = f"; {self.num_duplicates:,} repeated ids are numbered" if self.num_duplicates else ""
        return f"{used}{'; left out: ' + reasons if reasons else ''}{duplicates}."
