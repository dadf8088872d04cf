"""From a row to a prompt: its images found and checked, its marks counted, its id stable."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from PIL import Image

from pivot.data import images
from pivot.data.finder import MISSING, ImageFinder
from pivot.data.images import ImageError, ReadableImage
from pivot.data.layout import BadRow, Draft, Format, Layout, NotIncluded, RowReader
from pivot.data.rows import RawRow
from pivot.data.spec import DataSpec, SkippedRow
from pivot.data.template import IMAGE_MARK
from pivot.types import Prompt


class MissingImage:
    """Stands for an image that cannot be used, in the prompt of a skipped row."""

    def open(self) -> Image.Image:
        raise ImageError(MISSING)


class PromptBuilder:
    """Turns rows into prompts one by one and keeps count of the ids it has given."""

    def __init__(
        self, known: Format, spec: DataSpec, split: str, layout: Layout, finder: ImageFinder
    ) -> None:
        self._prefix = f"{known.name}/{split}"
        self._spec = spec
        self._layout = layout
        self._finder = finder
        self._given: dict[str, int] = {}
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
        """The checked prompt, or the row with its first problem."""
        sources, problems = self._find_images(draft)
        prompt = Prompt(
            id=self._unique(own or _content_id(draft), is_own=own is not None),
            question=_marked(draft.question, len(draft.images)),
            answer=draft.answer,
            images=tuple(sources) if not problems else tuple(MissingImage() for _ in draft.images),
            task=draft.task,
            columns={**_plain_columns(values), **draft.columns},
        )
        if problems and self._spec.allow_missing_images and problems == [MISSING] * len(draft.images):
            return replace(prompt, question=prompt.question.replace(IMAGE_MARK, ""), images=())
        num_marks = prompt.question.count(IMAGE_MARK)
        if num_marks != len(prompt.images):
            reason = f"marks do not fit ({num_marks} {IMAGE_MARK} marks, {len(prompt.images)} images)"
            return SkippedRow(prompt.id, problems[0] if problems else reason)
        return SkippedRow(prompt.id, problems[0], prompt=prompt) if problems else prompt

    def _find_images(self, draft: Draft) -> tuple[list[ReadableImage], list[str]]:
        """The images that can be used, and what is wrong with the others."""
        sources: list[ReadableImage] = []
        problems: list[str] = []
        for cell in draft.images:
            try:
                source = self._finder.find(cell)
                images.check(source, self._spec.max_pixels, full=self._spec.check_images == "full")
                sources.append(source)
            except (BadRow, ImageError) as broken:
                problems.append(str(broken))
        return sources, problems

    def _unique(self, name: str, is_own: bool) -> str:
        """The id under the set's name; one that is taken is numbered."""
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
    """The question with explicit marks; without any, the images come first, right before its words."""
    return question if IMAGE_MARK in question else IMAGE_MARK * num_images + question.lstrip()


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
