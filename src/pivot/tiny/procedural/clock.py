"""A clock whose short red hand jumps from hour to hour and whose long blue hand points at a multiple of five.

Levels: 1 the hour some hours later; 2 the minutes to the next hour; 3 the minute some minutes later.
Out of domain: a smaller clock, less centred, without numbers, the hands in other colours.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from PIL import Image

from pivot.tiny.procedural.canvas import BLACK, BLUE, BROWN, GREY, PURPLE, RED, Canvas, Colour, Point
from pivot.tiny.procedural.scene import Picture, Scene, Working


@dataclass(frozen=True)
class Dial(Picture):
    """Two hands, each on one of twelve marks."""

    hour: int
    mark: int
    """Where the long hand points, 1 to 12."""
    centre: Point
    radius: int
    inks: tuple[Colour, Colour]
    """Of the short and of the long hand."""
    numbers: bool

    def render(self) -> Image.Image:
        canvas = Canvas()
        canvas.disc(self.centre, self.radius, GREY, filled=False)
        for number in range(1, 13):
            if self.numbers and number % 3 == 0:
                canvas.name(str(number), self._towards(number, self.radius - 6))
            else:
                canvas.line(self._towards(number, self.radius - 4), self._towards(number, self.radius - 1))
        canvas.line(self.centre, self._towards(self.mark, self.radius - 10), self.inks[1], width=3)
        canvas.line(self.centre, self._towards(self.hour, self.radius * 0.5), self.inks[0], width=5)
        canvas.disc(self.centre, 3, BLACK)
        return canvas.image

    def _towards(self, number: int, length: float) -> Point:
        angle = math.tau * number / 12
        return (
            round(self.centre[0] + length * math.sin(angle)),
            round(self.centre[1] - length * math.cos(angle)),
        )


@dataclass(frozen=True)
class ClockScene(Scene):
    """Time arithmetic on one of the hands."""

    later: int
    """Hours (level 1) or minutes (level 3) that the question adds."""

    typical_answers: ClassVar[tuple[int, int, int]] = (10, 30, 30)
    typical_percepts: ClassVar[tuple[int, ...]] = (12, 6, 3, 10)
    hunch: ClassVar[str] = "clocks in pictures mostly show ten past ten"

    @classmethod
    def draw(cls, rng: random.Random, level: int, *, ood: bool) -> Self:
        picture = Dial(
            hour=rng.randint(1, 12),
            mark=rng.randint(1, 12) if level == 1 else rng.randint(1, 11),
            centre=(rng.randint(40, 44), rng.randint(40, 44))
            if ood
            else (rng.randint(41, 43), rng.randint(41, 43)),
            radius=rng.randint(34, 36) if ood else rng.randint(38, 40),
            inks=(BROWN, PURPLE) if ood else (RED, BLUE),
            numbers=not ood,
        )
        later = {1: rng.randint(2, 6), 2: 0, 3: rng.choice((10, 15, 20, 25))}[level]
        return cls(picture=picture, level=level, wording=rng.randrange(3), later=later)

    @property
    def question(self) -> str:
        if self.level == 1:
            return (
                f"Which hour does the short hand show {self.later} hours later?",
                f"In {self.later} hours, what hour is it?",
                f"The short hand moves on by {self.later} hours. Where is it then?",
            )[self.wording]
        if self.level == 2:
            return (
                "How many minutes are left to the full hour?",
                "In how many minutes is the hour full?",
                "How long until the long hand is at the top, in minutes?",
            )[self.wording]
        return (
            f"How many minutes past the hour is it {self.later} minutes later?",
            f"In {self.later} minutes, what does the long hand say in minutes?",
            f"The long hand moves on by {self.later} minutes. Which minute is it then?",
        )[self.wording]

    @property
    def percepts(self) -> tuple[tuple[str, int], ...]:
        assert isinstance(self.picture, Dial)
        if self.level == 1:
            return (("short hand", self.picture.hour),)
        return (("long hand", self.picture.mark),)

    def work(self, values: Sequence[int]) -> Working:
        (value,) = values
        if self.level == 1:
            return _wrapped((), value, self.later, 12)
        minutes = 5 * value
        first = f"5*{value}={minutes}"
        if self.level == 2:
            return Working((first, f"60-{minutes}={60 - minutes}"), 60 - minutes)
        return _wrapped((first,), minutes, self.later, 60)


def _wrapped(before: tuple[str, ...], start: int, later: int, turn: int) -> Working:
    """start + later on a dial of `turn` units; a full turn of hours is 12, of minutes 0."""
    total = start + later
    steps = (*before, f"{start}+{later}={total}")
    if total < turn or (total == turn and turn == 12):
        return Working(steps, total)
    return Working((*steps, f"{total}-{turn}={total - turn}"), total - turn)
