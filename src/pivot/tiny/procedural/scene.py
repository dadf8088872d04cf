"""What every task provides: a picture, a question, what is to be read, and the working from there."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from PIL import Image

LEVELS = (1, 2, 3)
"""Difficulties; each task says in its docstring what they are."""


class Picture(ABC):
    """Everything that decides the pixels and nothing else: its `repr` is the key that assigns it a split."""

    @abstractmethod
    def render(self) -> Image.Image: ...


@dataclass(frozen=True)
class Working:
    """The steps after the percepts, and where they lead.

    Example:
        Working(steps=("40+70=110", "180-110=70"), answer=70)
    """

    steps: tuple[str, ...]
    answer: int


@dataclass(frozen=True)
class Scene(ABC):
    """One problem of a task: a picture and what is asked about it.

    A task is a subclass. Its class variables hold the language prior: the typical answer of a level is
    made right in three in-domain problems of ten, so guessing it pays often but not reliably.
    """

    picture: Picture
    level: int
    wording: int
    """Which of the phrasings the question has, 0, 1 or 2."""

    typical_answers: ClassVar[tuple[int, int, int]]
    """The favourite answer at each level."""
    typical_percepts: ClassVar[tuple[int, ...]]
    """Values that somebody who doesn't look would name; the first ones more readily."""
    hunch: ClassVar[str]
    """The shortcut in words."""

    @classmethod
    @abstractmethod
    def draw(cls, rng: random.Random, level: int, *, ood: bool) -> Self:
        """A random problem; `ood` takes the out-of-domain look and range."""

    @property
    @abstractmethod
    def question(self) -> str: ...

    @property
    @abstractmethod
    def percepts(self) -> tuple[tuple[str, int], ...]:
        """What has to be read off the picture, in the order of the chain: (name, value)."""

    @abstractmethod
    def work(self, values: Sequence[int]) -> Working:
        """The computation from percept values, true ones or not."""

    @property
    def answer(self) -> int:
        return self.work([value for _, value in self.percepts]).answer

    @property
    def typical_answer(self) -> int:
        return self.typical_answers[self.level - 1]
