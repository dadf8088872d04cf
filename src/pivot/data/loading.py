"""From rows to prompts: images found and checked, image marks counted, stable ids, bad rows skipped or refused."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image

from pivot.data import images
from pivot.data.formats import (
    BadRow,
    DataSet,
    DataSpec,
    Draft,
    Format,
    Layout,
    NotIncluded,
    RowReader,
    SkippedRow,
)
from pivot.data.images import MISSING, ImageError, ImageFinder, ReadableImage, content_of
from pivot.data.memory import MemoryRows
from pivot.data.recognition import recognise
from pivot.data.sources import RawRow, Rows, download, open_rows, split_of
from pivot.data.template import IMAGE_MARK
from pivot.errors import UserError
from pivot.types import Prompt


class MissingImage:
    """Placeholder for an unusable image in the prompt of a skipped row."""

    def open(self) -> Image.Image:
        raise ImageError(MISSING)


class PromptBuilder:
    """Turns rows into prompts one by one and keeps their ids unique."""

    def __init__(
        self, known: Format, spec: DataSpec, split: str, layout: Layout, finder: ImageFinder
    ) -> None:
        self._prefix = f"{known.name}/{split}"
        self._spec = spec
        self._layout = layout
        self._finder = finder
        self._given: dict[str, int] = {}
        self.repeated: list[str] = []
        """The source's own ids that occurred before."""
        self.num_duplicates = 0

    def build(self, row: RawRow) -> Prompt | SkippedRow:
        if row.values is None:
            return SkippedRow(f"{self._prefix}/row-{row.number}", row.error)
        reader = RowReader(row.values, self._spec)
        own = None
        try:
            own = self._layout.own_id(reader)
            draft = self._layout.draft(reader)
        except (BadRow, NotIncluded) as left_out:
            name = self._unique(own or f"row-{row.number}", is_own=own is not None)
            return SkippedRow(name, str(left_out), broken=isinstance(left_out, BadRow))
        return self._finish(draft, row.values, own)

    def _finish(self, draft: Draft, values: dict[str, Any], own: str | None) -> Prompt | SkippedRow:
        """The checked prompt, or a skipped row with its first problem."""
        sources, problems = self._find_images(draft)
        prompt = Prompt(
            id=self._unique(own or _content_id(draft), is_own=own is not None),
            question=_marked(draft.question, len(draft.images)),
            answer=draft.answer,
            images=tuple(sources) if not problems else tuple(MissingImage() for _ in draft.images),
            task=draft.task,
            system=draft.system,
            columns={**_plain_columns(values), **draft.columns},
        )
        if problems and self._spec.allow_missing_images and problems == [MISSING] * len(draft.images):
            return replace(prompt, question=prompt.question.replace(IMAGE_MARK, ""), images=())
        num_marks = prompt.question.count(IMAGE_MARK)
        if num_marks != len(prompt.images):
            reason = (
                f"marks do not match images ({num_marks} {IMAGE_MARK} marks, {len(prompt.images)} images)"
            )
            return SkippedRow(prompt.id, problems[0] if problems else reason)
        return SkippedRow(prompt.id, problems[0], prompt=prompt) if problems else prompt

    def _find_images(self, draft: Draft) -> tuple[list[ReadableImage], list[str]]:
        """The usable images, and the problems of the others."""
        sources: list[ReadableImage] = []
        problems: list[str] = []
        for cell in draft.images:
            try:
                source = self._finder.find(cell)
                images.check(source, self._spec.max_pixels, full=self._spec.check_images == "full")
                sources.append(source)
            except ImageError as broken:
                problems.append(str(broken))
        return sources, problems

    def _unique(self, name: str, is_own: bool) -> str:
        """The id with the set's prefix; a repeated id gets a number."""
        name = f"{self._prefix}/{name}"
        if name not in self._given:
            self._given[name] = 1
            return name
        self.num_duplicates += 1
        if is_own:
            self.repeated.append(name)
        numbered = name
        while numbered in self._given:
            self._given[name] += 1
            numbered = f"{name}#{self._given[name]}"
        self._given[numbered] = 1
        return numbered


def _marked(question: str, num_images: int) -> str:
    """The question with explicit image marks; without any, the images come first."""
    return question if IMAGE_MARK in question else IMAGE_MARK * num_images + question.lstrip()


def _content_id(draft: Draft) -> str:
    """An id for a row without one: a hash of its content, independent of its position in the file."""
    digest = hashlib.blake2b(digest_size=8)
    system = (draft.system,) if draft.system else ()
    for part in (draft.question, draft.answer, *draft.images, *system):
        part = part if isinstance(part, str) else content_of(part)
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


_NAMED_IN_ERRORS = 5


def load_format(known: Format, spec: DataSpec) -> DataSet:
    """All rows of a data set in order, each a prompt or a skipped row."""
    rows, finder, split = _open(known, spec)
    layout = _layout(known, rows, spec)
    builder = PromptBuilder(known, spec, split, layout, finder)
    built: list[Prompt | SkippedRow] = []
    for row in rows:
        if spec.limit is not None and row.number >= spec.limit:
            break
        built.append(builder.build(row))
    data = DataSet(known.name, split, tuple(built), builder.num_duplicates, recognised=layout.described)
    if spec.bad_rows == "refuse":
        _refuse_broken(data)
        _refuse_repeated(data, builder.repeated)
    return replace(data, warnings=(*_limit_warning(rows, spec, data), *_count_warnings(known, spec, data)))


def _layout(known: Format, rows: Rows | MemoryRows, spec: DataSpec) -> Layout:
    """A known set's own layout, unless the user names columns; other sets are recognised by theirs."""
    if known.layouts and not spec.names_columns:
        return known.layout(rows.columns, spec)
    first = next((row.values for row in rows if row.values is not None), {})
    return recognise(known.name, rows.columns, first, spec)


def _open(known: Format, spec: DataSpec) -> tuple[Rows | MemoryRows, ImageFinder, str]:
    """The rows, the finder of their images, and the split: the requested one or that of a local file's name."""
    boundary = None
    if spec.rows is not None:
        rows, root, split = MemoryRows(spec.rows), Path.cwd(), spec.split or known.split
    elif spec.path is not None:
        path = Path(spec.path).expanduser()
        split = spec.split or split_of(path) or known.split
        rows = open_rows(path, spec.split or known.split, spec.config, known.files)
        root = rows.root
    else:
        hub_id = spec.name if "/" in spec.name else known.hub_id
        split, config = spec.split or known.split, spec.config or known.config
        files = known.files if hub_id == known.hub_id else ()
        found = download(hub_id, split, config, spec.revision, files)
        rows = open_rows(found.folder, split, config, files)
        root, boundary = found.folder, found.boundary
    if spec.image_root is not None:
        root, boundary = Path(spec.image_root).expanduser(), None
        if not root.is_dir():
            raise UserError(f"the image folder {spec.image_root} (data.image_root) does not exist.")
    return rows, ImageFinder(root, boundary, spec.allow_absolute_paths, spec.allow_urls), split


def _limit_warning(rows: Rows | MemoryRows, spec: DataSpec, data: DataSet) -> tuple[str, ...]:
    if spec.limit is None or len(data.rows) < spec.limit:
        return ()
    total = rows.count()
    if total <= spec.limit:
        return ()
    return (f"only the first {spec.limit:,} of {total:,} rows of {data.name}/{data.split} are read.",)


def _refuse_broken(data: DataSet) -> None:
    broken = [row for row in data.skipped if row.broken]
    if broken:
        named = "; ".join(f"{row.id}: {row.reason}" for row in broken[:_NAMED_IN_ERRORS])
        more = f"; and {len(broken) - _NAMED_IN_ERRORS} more" if len(broken) > _NAMED_IN_ERRORS else ""
        raise UserError(
            f"{len(broken)} of {len(data.rows)} rows of {data.name}/{data.split} cannot be used "
            f"({named}{more}): fix them, or skip them with --set data.bad_rows=skip."
        )


def _refuse_repeated(data: DataSet, repeated: list[str]) -> None:
    if repeated:
        named = ", ".join(repeated[:_NAMED_IN_ERRORS]) + ", ..." * (len(repeated) > _NAMED_IN_ERRORS)
        raise UserError(
            f"{len(repeated)} rows of {data.name}/{data.split} repeat an id ({named}): make them unique, or "
            "number them with --set data.bad_rows=skip."
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
            "results are not comparable with published ones."
        )
    if broken:
        warnings.append(f"{data.name}/{data.split}: {len(broken):,} rows cannot be used. {data.summary()}")
    return tuple(warnings)
