"""Labelled segments: the points A, B, C, D on a line with lengths written over the pieces.

Levels: 1 the sum of two neighbouring pieces; 2 all three pieces; 3 the last piece from the whole.
Out of domain: coloured ink, the line somewhat lower, in a quarter of the problems the lengths under it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from PIL import Image

from pivot.tiny.procedural.canvas import BLACK, BROWN, NAVY, PINE, SIZE, Canvas, Colour
from pivot.tiny.procedural.scene import Picture, Scene, Working

POINTS = "ABCD"
PIECES = ("AB", "BC", "CD")
POINT_X = (3, 29, 55, 80)


@dataclass(frozen=True)
class Line(Picture):
    """A line with three pieces, their labels on one side and perhaps the whole length on the other."""

    labels: tuple[str, str, str]
    whole: str
    """Label of AD, empty if it isn't drawn."""
    y: int
    shift: int
    over: bool
    """The pieces' labels are above the line and the whole's below; or the other way round."""
    ink: Colour

    def render(self) -> Image.Image:
        canvas = Canvas()
        side = -1 if self.over else 1
        canvas.line((POINT_X[0], self.y), (POINT_X[-1], self.y), self.ink, width=2)
        for name, x in zip(POINTS, POINT_X, strict=True):
            canvas.line((x, self.y - 3), (x, self.y + 4), self.ink, width=2)
            canvas.name(name, (x, self.y - side * 10), self.ink)
        for label, left, right in zip(self.labels, POINT_X, POINT_X[1:], strict=False):
            canvas.number(label, ((left + right) // 2 + self.shift, self.y + side * 13), self.ink)
        if self.whole:
            edge = self.y - side * 20
            for x, towards in ((POINT_X[0], 1), (POINT_X[-1], -1)):
                canvas.line((x, edge), (x, edge - side * 4), self.ink)
                canvas.line((x, edge - side * 4), (x + towards * 22, edge - side * 4), self.ink)
            canvas.number(self.whole, (SIZE // 2 + self.shift, edge - side * 4), self.ink)
        return canvas.image


@dataclass(frozen=True)
class SegmentsScene(Scene):
    """Lengths along a line."""

    asked: tuple[int, ...]
    """Indices of the pieces that make up the length in question; at level 3 the unknown piece."""

    typical_answers: ClassVar[tuple[int, int, int]] = (10, 15, 5)
    typical_percepts: ClassVar[tuple[int, ...]] = (5, 6, 4, 8)
    hunch: ClassVar[str] = "lengths like these are mostly the same"

    @classmethod
    def draw(cls, rng: random.Random, level: int, *, ood: bool) -> Self:
        lengths = [rng.randint(1, 9) for _ in PIECES]
        labels = [str(length) for length in lengths]
        asked = {1: rng.choice(((0, 1), (1, 2))), 2: (0, 1, 2), 3: (rng.randrange(3),)}[level]
        if level == 3:
            labels[asked[0]] = "x"
        picture = Line(
            labels=(labels[0], labels[1], labels[2]),
            whole=str(sum(lengths)) if level == 3 else "",
            y=rng.randint(32, 35) if ood else rng.randint(30, 34),
            shift=rng.randint(-2, 2),
            over=not ood or rng.random() < 0.75,
            ink=rng.choice((NAVY, PINE, BROWN)) if ood else BLACK,
        )
        return cls(picture=picture, level=level, wording=rng.randrange(3), asked=asked)

    @property
    def question(self) -> str:
        if self.level == 3:
            piece = PIECES[self.asked[0]]
            return (
                f"How long is the piece {piece}?",
                f"Find x, the length of {piece}.",
                f"What length must {piece} have?",
            )[self.wording]
        ends = POINTS[self.asked[0]] + POINTS[self.asked[-1] + 1]
        return (
            f"How long is {ends}?",
            f"A, B, C and D lie on a line. Find the length {ends}.",
            f"What is the distance from {ends[0]} to {ends[1]}?",
        )[self.wording]

    @property
    def percepts(self) -> tuple[tuple[str, int], ...]:
        assert isinstance(self.picture, Line)
        read = zip(PIECES, self.picture.labels, strict=True)
        if self.level == 3:
            known = tuple((piece, int(label)) for piece, label in read if label != "x")
            return (*known, ("AD", int(self.picture.whole)))
        return tuple((piece, int(label)) for place, (piece, label) in enumerate(read) if place in self.asked)

    def work(self, values: Sequence[int]) -> Working:
        if self.level < 3:
            return Working((f"{'+'.join(map(str, values))}={sum(values)}",), sum(values))
        first, second, whole = values
        part = first + second
        high, low = max(whole, part), min(whole, part)
        return Working((f"{first}+{second}={part}", f"{high}-{low}={high - low}"), high - low)
