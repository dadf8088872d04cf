"""Angle chase: a triangle with two angles written in and the third marked x.

Levels: 1 multiples of ten; 2 multiples of five; 3 the difference between x and another angle.
Out of domain: the apex leans further to one side and the ink is coloured.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from PIL import Image

from pivot.tiny.procedural.canvas import BLACK, BROWN, NAVY, PINE, Canvas, Colour, Point
from pivot.tiny.procedural.scene import Picture, Scene, Working

VERTICES = "ABC"


@dataclass(frozen=True)
class Triangle(Picture):
    """A schematic triangle (not to scale): apex A on top, B left, C right."""

    labels: tuple[str, str, str]
    """What is written at A, B, C: degrees, or x."""
    apex_x: int
    shift: Point
    ink: Colour

    def render(self) -> Image.Image:
        canvas = Canvas()
        a, b, c = (self.apex_x, 3), (2, 81), (81, 81)
        canvas.polygon([a, b, c], self.ink, filled=False)
        for name, place in zip(VERTICES, ((a[0] + 8, 5), (4, 66), (79, 66)), strict=True):
            canvas.name(name, place, self.ink)
        middle = 42 + (self.apex_x - 42) // 2
        dx, dy = self.shift
        for label, (x, y) in zip(self.labels, ((middle, 40), (28, 69), (56, 69)), strict=True):
            canvas.number(label, (x + dx, y + dy), self.ink)
        return canvas.image


@dataclass(frozen=True)
class AngleScene(Scene):
    """x = 180 - (first + second)."""

    unknown: int
    """Index of the vertex marked x."""

    typical_answers: ClassVar[tuple[int, int, int]] = (60, 60, 20)
    typical_percepts: ClassVar[tuple[int, ...]] = (60, 50, 45, 70)
    hunch: ClassVar[str] = "it looks like an even triangle"

    @classmethod
    def draw(cls, rng: random.Random, level: int, *, ood: bool) -> Self:
        step = 10 if level == 1 else 5
        while True:
            known = [rng.randrange(20, 91, step), rng.randrange(20, 91, step)]
            if 60 <= sum(known) <= 150:
                break
        unknown = rng.randrange(3)
        labels = [str(value) for value in known]
        labels.insert(unknown, "x")
        picture = Triangle(
            labels=(labels[0], labels[1], labels[2]),
            apex_x=rng.choice((37, 38, 46, 47)) if ood else rng.randint(39, 45),
            shift=(rng.randint(-1, 1), rng.randint(-2, 2)),
            ink=rng.choice((NAVY, PINE, BROWN)) if ood else BLACK,
        )
        return cls(picture=picture, level=level, wording=rng.randrange(3), unknown=unknown)

    @property
    def question(self) -> str:
        vertex, first = VERTICES[self.unknown], self.percepts[0][0]
        if self.level == 3:
            return (
                f"By how many degrees do angle {vertex} and {first} differ?",
                f"What is the difference between angle {vertex} and {first}?",
                f"How far apart are angle {vertex} and {first}?",
            )[self.wording]
        return (
            f"Find angle {vertex} of the triangle.",
            f"In triangle ABC, how large is angle {vertex}?",
            f"What is the value of x at {vertex}?",
        )[self.wording]

    @property
    def percepts(self) -> tuple[tuple[str, int], ...]:
        assert isinstance(self.picture, Triangle)
        labelled = zip(VERTICES, self.picture.labels, strict=True)
        return tuple((f"angle {vertex}", int(label)) for vertex, label in labelled if label != "x")

    def work(self, values: Sequence[int]) -> Working:
        first, second = values
        total = first + second
        x = 180 - total
        steps = [f"{first}+{second}={total}", f"180-{total}={x}"]
        if self.level < 3:
            return Working(tuple(steps), x)
        high, low = max(x, first), min(x, first)
        return Working((*steps, f"{high}-{low}={high - low}"), high - low)
