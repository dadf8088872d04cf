"""Counting in the manner of SuperCLEVR: how many objects lie on four trays.

Levels: 1 two to seven objects of one colour; 2 five to eleven of two; 3 one colour among six to nine.
Out of domain: eight to eleven objects, diamonds among them, in other shades.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from PIL import Image

from pivot.tiny.procedural.canvas import BLUE, PALE, RED, SIZE, Canvas, Colour, Point
from pivot.tiny.procedural.scene import Picture, Scene, Working

CELL = 14
TRAY = 28
TRAYS = {"A": (0, 0), "B": (SIZE - TRAY, 0), "C": (0, SIZE - TRAY), "D": (SIZE - TRAY, SIZE - TRAY)}
"""Name -> top left corner; its first quarter bears the name, the others have room for an object."""
SLOTS = tuple((x + dx, y + dy) for x, y in TRAYS.values() for dx, dy in ((CELL, 0), (0, CELL), (CELL, CELL)))
COLOURS = ("red", "blue")
SHADES = {"red": RED, "blue": BLUE}
OOD_SHADES = {"red": (240, 90, 70), "blue": (20, 30, 130)}
SHAPES = ("ball", "cube", "cone")


@dataclass(frozen=True, order=True)
class Thing:
    """One object; x and y are its top left corner."""

    y: int
    x: int
    size: int
    shape: str
    colour: str


@dataclass(frozen=True)
class Trays(Picture):
    """Objects on trays in the four corners, sorted by place."""

    things: tuple[Thing, ...]
    bright: bool
    """The usual shades, or the out-of-domain ones."""

    def render(self) -> Image.Image:
        canvas = Canvas()
        shades = SHADES if self.bright else OOD_SHADES
        for name, (x, y) in TRAYS.items():
            canvas.frame((x, y), (x + TRAY - 1, y + TRAY - 1), PALE)
            canvas.number(name, (x + CELL // 2, y + CELL // 2 + 1))
        for thing in self.things:
            _paint(canvas, thing, shades[thing.colour])
        return canvas.image


def _paint(canvas: Canvas, thing: Thing, ink: Colour) -> None:
    x, y, k = thing.x, thing.y, thing.size
    half = k // 2
    if thing.shape == "ball":
        canvas.disc((x + half, y + half), half, ink)
    elif thing.shape == "cube":
        canvas.box((x, y), (x + k, y + k), ink)
    elif thing.shape == "cone":
        canvas.polygon([(x, y + k), (x + k, y + k), (x + half, y)], ink)
    else:
        canvas.polygon([(x + half, y), (x + k, y + half), (x + half, y + k), (x, y + half)], ink)


def _lies_on(thing: Thing, corner: Point) -> bool:
    return 0 <= thing.x - corner[0] < TRAY and 0 <= thing.y - corner[1] < TRAY


@dataclass(frozen=True)
class CountScene(Scene):
    """The number of objects, or of those of one colour: the sum over the trays."""

    colour: str
    """Of the objects that count; empty where all do."""

    typical_answers: ClassVar[tuple[int, int, int]] = (3, 7, 4)
    typical_percepts: ClassVar[tuple[int, ...]] = (1, 2, 3, 0)
    hunch: ClassVar[str] = "there are usually a few of them"

    @classmethod
    def draw(cls, rng: random.Random, level: int, *, ood: bool) -> Self:
        low, high = (8, 11) if ood else {1: (2, 7), 2: (5, 11), 3: (6, 9)}[level]
        colours = (rng.choice(COLOURS),) if level == 1 else COLOURS
        things = [
            Thing(
                y=y + rng.randint(1, 2),
                x=x + rng.randint(1, 2),
                size=rng.choice((9, 10, 11)),
                shape=rng.choice((*SHAPES, "diamond")) if ood else rng.choice(SHAPES),
                colour=rng.choice(colours),
            )
            for x, y in rng.sample(SLOTS, rng.randint(low, high))
        ]
        picture = Trays(things=tuple(sorted(things)), bright=not ood)
        asked = rng.choice(COLOURS) if level == 3 else ""
        return cls(picture=picture, level=level, wording=rng.randrange(3), colour=asked)

    @property
    def question(self) -> str:
        if self.level < 3:
            return (
                "How many objects are there?",
                "Count the objects on the trays.",
                "What is the number of objects?",
            )[self.wording]
        other = COLOURS[1 - COLOURS.index(self.colour)]
        return (
            f"How many {self.colour} objects are there?",
            f"Subtract all {other} objects. What number remains?",
            f"If the {other} objects are taken away, how many stay?",
        )[self.wording]

    @property
    def percepts(self) -> tuple[tuple[str, int], ...]:
        assert isinstance(self.picture, Trays)
        wanted = [thing for thing in self.picture.things if self.colour in ("", thing.colour)]
        return tuple(
            (f"{self.colour or 'tray'} {name}", sum(_lies_on(thing, corner) for thing in wanted))
            for name, corner in TRAYS.items()
        )

    def work(self, values: Sequence[int]) -> Working:
        return Working((f"{'+'.join(map(str, values))}={sum(values)}",), sum(values))
