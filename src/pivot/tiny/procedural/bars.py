"""Bar-chart arithmetic: read the bars that are asked for, then add or subtract.

Levels: 1 the sum of two bars; 2 the difference of two; 3 the sum of three.
Out of domain: thin bars of one dark colour, without the pale grid lines.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from PIL import Image

from pivot.tiny.procedural.canvas import (
    BLUE,
    GOLD,
    GREEN,
    GREY,
    PALE,
    PURPLE,
    RED,
    SIZE,
    TEAL,
    Canvas,
    Colour,
)
from pivot.tiny.procedural.scene import Picture, Scene, Working

NAMES = "ABCD"
UNIT = 8
"""Pixels per unit of height."""
FLOOR = 74
HIGHEST = 9
PITCH = 19


@dataclass(frozen=True)
class Chart(Picture):
    """Four bars A to D over their letters; the line of height 5 is marked."""

    heights: tuple[int, int, int, int]
    inks: tuple[Colour, Colour, Colour, Colour]
    width: int
    left: int
    grid: bool

    def render(self) -> Image.Image:
        canvas = Canvas()
        for height in range(1, HIGHEST + 1):
            y = FLOOR - height * UNIT
            if self.grid or height == 5:
                canvas.line((9 if height == 5 else 0, y), (SIZE, y), GREY if height == 5 else PALE)
        canvas.name("5", (4, FLOOR - 5 * UNIT), GREY)
        for place, (height, ink) in enumerate(zip(self.heights, self.inks, strict=True)):
            centre = self.left + place * PITCH
            corner = (centre - self.width // 2, FLOOR - height * UNIT)
            canvas.box(corner, (corner[0] + self.width - 1, FLOOR), ink)
            canvas.name(NAMES[place], (centre, 80))
        canvas.line((0, FLOOR), (SIZE, FLOOR))
        return canvas.image


@dataclass(frozen=True)
class BarsScene(Scene):
    """Arithmetic on some of the bars."""

    asked: tuple[int, ...]
    """Indices of the bars that the question names."""

    typical_answers: ClassVar[tuple[int, int, int]] = (10, 3, 15)
    typical_percepts: ClassVar[tuple[int, ...]] = (5, 8, 2, 6)
    hunch: ClassVar[str] = "such charts mostly give round numbers"

    @classmethod
    def draw(cls, rng: random.Random, level: int, *, ood: bool) -> Self:
        heights = tuple(rng.randint(1, HIGHEST) for _ in NAMES)
        inks = [RED, BLUE, GREEN, GOLD]
        rng.shuffle(inks)
        dark = rng.choice((PURPLE, TEAL))
        picture = Chart(
            heights=(heights[0], heights[1], heights[2], heights[3]),
            inks=(dark, dark, dark, dark) if ood else (inks[0], inks[1], inks[2], inks[3]),
            width=rng.choice((6, 7)) if ood else rng.choice((11, 12, 13)),
            left=rng.randint(16, 18),
            grid=not ood,
        )
        asked = tuple(rng.sample(range(len(NAMES)), 3 if level == 3 else 2))
        if level == 2:
            asked = tuple(sorted(asked, key=lambda place: -heights[place]))
        return cls(picture=picture, level=level, wording=rng.randrange(3), asked=asked)

    @property
    def question(self) -> str:
        names = [NAMES[place] for place in self.asked]
        if self.level == 2:
            return (
                f"How much taller is bar {names[0]} than bar {names[1]}?",
                f"What is bar {names[0]} minus bar {names[1]}?",
                f"Subtract bar {names[1]} from bar {names[0]}.",
            )[self.wording]
        listed = f"{', '.join(names[:-1])} and {names[-1]}"
        return (
            f"What do the bars {listed} add up to?",
            f"What is the sum of bars {listed}?",
            f"Add the bars {listed}.",
        )[self.wording]

    @property
    def percepts(self) -> tuple[tuple[str, int], ...]:
        assert isinstance(self.picture, Chart)
        return tuple((f"bar {NAMES[place]}", self.picture.heights[place]) for place in self.asked)

    def work(self, values: Sequence[int]) -> Working:
        if self.level == 2:
            high, low = max(values), min(values)
            return Working((f"{high}-{low}={high - low}",), high - low)
        return Working((f"{'+'.join(map(str, values))}={sum(values)}",), sum(values))
