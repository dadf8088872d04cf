"""What every task provides: a picture, a question, the values to read off, and the computation with them."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from PIL import Image

LEVELS = (1, 2, 3)
"""Difficulties; each task describes them in its docstring."""


class Picture(ABC):
    """Everything that determines the pixels and nothing else: its `repr` is hashed to assign it to a split."""

    @abstractmethod
    def render(self) -> Image.Image: ...


@dataclass(frozen=True)
class Working:
    """The computation after the percepts, and its result.

    Example:
        Working(steps=("40+70=110", "180-110=70"), answer=70)
    """

    steps: tuple[str, ...]
    answer: int


@dataclass(frozen=True)
class Scene(ABC):
    """One problem of a task: a picture and what is asked about it.

    A task is a subclass. Its class variables hold the language prior: the typical answer of a level is
    correct in three of ten in-domain problems, so guessing it often pays, but not reliably.
    """

    picture: Picture
    level: int
    wording: int
    """The phrasing of the question: 0, 1 or 2."""

    typical_answers: ClassVar[tuple[int, int, int]]
    """The most frequent answer at each level."""
    typical_percepts: ClassVar[tuple[int, ...]]
    """Values that a response would state without looking; the first ones are more likely."""
    hunch: ClassVar[str]
    """The shortcut in words."""

    @classmethod
    @abstractmethod
    def draw(cls, rng: random.Random, level: int, *, ood: bool) -> Self:
        """A random problem; `ood` selects the out-of-domain appearance and range."""

    @property
    @abstractmethod
    def question(self) -> str: ...

    @property
    @abstractmethod
    def percepts(self) -> tuple[tuple[str, int], ...]:
        """The values to read off the picture, in the order of the chain: (name, value)."""

    @abstractmethod
    def work(self, values: Sequence[int]) -> Working:
        """The computation from percept values, whether true or not."""

    @property
    def answer(self) -> int:
        return self.work([value for _, value in self.percepts]).answer

    @property
    def typical_answer(self) -> int:
        return self.typical_answers[self.level - 1]
