"""From rows to prompts: checks, stable ids, and what is left out."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

from PIL import Image

from pivot.errors import UserError
from pivot.tasks import images
from pivot.tasks.datasets.finder import ImageFinder
from pivot.tasks.datasets.hub import download
from pivot.tasks.datasets.layout import BadRow, Draft, Format, Layout, NotIncluded, RowReader
from pivot.tasks.datasets.rows import RawRow, Rows, open_rows, split_of
from pivot.tasks.datasets.spec import DataSet, DataSpec, SkippedRow
from pivot.tasks.images import EncodedImage, ImageError
from pivot.tasks.template import IMAGE_MARK
from pivot.types import Prompt

_NAMED_IN_ERRORS = 5


class MissingImage:
    """Stands for an image that is not there, in the prompt of a skipped row."""

    def open(self) -> Image.Image:
        raise ImageError("image missing")


def load_format(known: Format, spec: DataSpec) -> DataSet:
    """All rows of a data set in their order, each a prompt or a skipped row with its reason."""
    rows, finder, split = _open(known, spec)
    builder = _Builder(known, spec, split, known.layout(rows.columns, spec), finder)
    built: list[Prompt | SkippedRow] = []
    for row in rows:
        if spec.limit is not None and row.number >= spec.limit:
            break
        built.append(builder.build(row))
    data = DataSet(known.name, split, tuple(built), builder.num_duplicates)
    if spec.bad_rows == "refuse":
        _refuse_broken(data)
        _refuse_repeated(data, builder.repeated)
    return DataSet(data.name, split, data.rows, data.num_duplicates, _count_warnings(known, spec, data))


def _open(known: Format, spec: DataSpec) -> tuple[Rows, ImageFinder, str]:
    """The rows and the finder of their images; the split is the asked one, or what a local name tells."""
    local = spec.path or (spec.name if "/" in spec.name and Path(spec.name).exists() else None)
    if local is not None:
        path = Path(local).expanduser()
        split = spec.split or split_of(path) or known.split
        rows = open_rows(path, spec.split or known.split, spec.config)
        return rows, ImageFinder(rows.root, absolute_paths=spec.absolute_paths), split
    hub_id = spec.name if "/" in spec.name else known.hub_id
    split, config = spec.split or known.split, spec.config or known.config
    files = known.files if hub_id == known.hub_id else ()
    found = download(hub_id, split, config, spec.revision, files)
    rows = open_rows(found.folder, split, config)
    return rows, ImageFinder(found.folder, boundary=found.boundary), split


def _refuse_broken(data: DataSet) -> None:
    broken = [row for row in data.skipped if row.broken]
    if broken:
        named = "; ".join(f"{row.id}: {row.reason}" for row in broken[:_NAMED_IN_ERRORS])
        more = f"; and {len(broken) - _NAMED_IN_ERRORS} more" if len(broken) > _NAMED_IN_ERRORS else ""
        raise UserError(
            f"{len(broken)} of {len(data.rows)} rows of {data.name}/{data.split} cannot be used "
            f"({named}{more}): mend them, or leave them out with bad_rows=skip."
        )


def _refuse_repeated(data: DataSet, repeated: list[str]) -> None:
    if repeated:
        named = ", ".join(repeated[:_NAMED_IN_ERRORS]) + ", ..." * (len(repeated) > _NAMED_IN_ERRORS)
        raise UserError(
            f"{len(repeated)} rows of {data.name}/{data.split} repeat an id ({named}): make them unique, or "
            "let them be numbered with bad_rows=skip."
        )


def _count_warnings(known: Format, spec: DataSpec, data: DataSet) -> tuple[str, ...]:
    expected = known.expected.get(data.split)
    if expected is None or spec.limit is not None:
        return ()
    meant = sum(isinstance(row, Prompt) or row.broken for row in data.rows)
    broken = [row for row in data.skipped if row.broken]
    warnings = []
    if meant != expected:
        warnings.append(
            f"{data.name}/{data.split} has {meant:,} rows here, {expected:,} are expected: "
            "results do not compare with published ones."
        )
    if broken:
        warnings.append(f"{data.name}/{data.split}: {len(broken):,} rows cannot be used. {data.summary()}")
    return tuple(warnings)


class _Builder:
    """Turns rows into prompts one by one and keeps count of the ids it has given."""

    def __init__(
        self, known: Format, spec: DataSpec, split: str, layout: Layout, finder: ImageFinder
    ) -> None:
        self._prefix = f"{known.name}/{split}"
        self._spec = spec
        self._layout = layout
        self._finder = finder
        self._given: Counter[str] = Counter()
        self.repeated: list[str] = []
        """Ids of the source's own that occurred before."""
        self.num_duplicates = 0

    def build(self, row: RawRow) -> Prompt | SkippedRow:
        if row.values is None:
            return SkippedRow(f"{self._prefix}/row-{row.number}", row.error)
        reader = RowReader(row.values, self._spec)
        own = self._layout.own_id(reader)
        try:
            draft = self._layout.draft(reader)
        except (BadRow, NotIncluded) as left_out:
            name = self._unique(own or f"row-{row.number}", is_own=own is not None)
            return SkippedRow(name, str(left_out), broken=isinstance(left_out, BadRow))
        return self._finish(draft, row.values, own)

    def _finish(self, draft: Draft, values: dict[str, Any], own: str | None) -> Prompt | SkippedRow:
        """Find and check the images, then give the id; the content hash covers what makes the row itself."""
        sources: list[EncodedImage] = []
        problem = ""
        for cell in draft.images:
            try:
                source = self._finder.find(cell)
                images.check(source, self._spec.max_pixels, full=self._spec.check_images == "full")
                sources.append(source)
            except (BadRow, ImageError) as broken:
                problem = problem or str(broken)
        name = self._unique(own or _content_id(draft), is_own=own is not None)
        question = _marked(draft.question, len(draft.images))
        columns = {**_plain_columns(values), **draft.columns}
        if problem and not (self._spec.allow_missing_images and problem.startswith("image missing")):
            stand_ins = tuple(MissingImage() for _ in draft.images)
            shown = Prompt(name, question, draft.answer, stand_ins, draft.task, columns)
            return SkippedRow(name, problem, prompt=shown if _marks_fit(shown) else None)
        if problem:
            return Prompt(name, question.replace(IMAGE_MARK, ""), draft.answer, (), draft.task, columns)
        prompt = Prompt(name, question, draft.answer, tuple(sources), draft.task, columns)
        if not _marks_fit(prompt):
            num_marks = question.count(IMAGE_MARK)
            return SkippedRow(
                name, f"marks do not fit ({num_marks} {IMAGE_MARK} marks, {len(sources)} images)"
            )
        return prompt

    def _unique(self, name: str, is_own: bool) -> str:
        name = f"{self._prefix}/{name}"
        self._given[name] += 1
        if self._given[name] == 1:
            return name
        self.num_duplicates += 1
        if is_own:
            self.repeated.append(name)
        return f"{name}#{self._given[name]}"


def _marked(question: str, num_images: int) -> str:
    """The question with explicit marks; without any, the images come first."""
    return question if IMAGE_MARK in question else IMAGE_MARK * num_images + question


def _marks_fit(prompt: Prompt) -> bool:
    return prompt.question.count(IMAGE_MARK) == len(prompt.images)


def _content_id(draft: Draft) -> str:
    """A row without an id of its own is known by its content, wherever it stands in the file."""
    digest = hashlib.blake2b(digest_size=8)
    for part in (draft.question, draft.answer, *draft.images):
        if isinstance(part, dict):
            part = part.get("bytes") or part.get("path")
        data = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def _plain_columns(values: dict[str, Any]) -> dict[str, Any]:
    """The row without its image bytes."""
    return {column: value for column, value in values.items() if not _holds_bytes(value)}


def _holds_bytes(value: Any) -> bool:
    if isinstance(value, dict):
        return any(isinstance(item, bytes) for item in value.values())
    if isinstance(value, list):
        return any(_holds_bytes(item) for item in value)
    return isinstance(value, bytes)
