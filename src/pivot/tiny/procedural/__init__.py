"""Endless visual reasoning problems, reproducible by (task, split, index).

A picture belongs to exactly one split: its content is hashed, and a problem whose hash belongs to another split is
drawn again. Out-of-domain pictures look different by construction.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from PIL import Image

from pivot.errors import UserError
from pivot.tiny.procedural.angle import AngleScene
from pivot.tiny.procedural.bars import BarsScene
from pivot.tiny.procedural.chain import guess, true_chain
from pivot.tiny.procedural.clock import ClockScene
from pivot.tiny.procedural.count import CountScene
from pivot.tiny.procedural.scene import LEVELS, Picture, Scene
from pivot.tiny.procedural.segments import SegmentsScene
from pivot.types import Prompt

__all__ = ["LEVELS", "SPLITS", "TASKS", "Drawing", "dataset", "make", "scene", "shortcut", "solution"]

TASKS: dict[str, type[Scene]] = {
    "angle": AngleScene,
    "count": CountScene,
    "bars": BarsScene,
    "segments": SegmentsScene,
    "clock": ClockScene,
}
"""Task -> its scenes. A new task is one file and one line here."""

SPLITS = ("pretrain", "train", "validation", "test", "ood")
"""The shipped checkpoints were trained on `pretrain` alone and have seen no other split."""

TYPICAL_SHARE = 0.3
"""Share of in-domain problems that are given the level's typical answer; out of domain there are none."""

_SPLIT_BY_TENTH = ("pretrain",) * 5 + ("train",) * 3 + ("validation", "test")


@dataclass(frozen=True)
class Drawing:
    """An image source that renders its picture when it is opened."""

    picture: Picture

    def open(self) -> Image.Image:
        return self.picture.render()


def make(task: str, split: str, index: int) -> Prompt:
    """Problem number `index` of a task's split; the level is 1 + index % 3.

    Example:
        make("angle", "train", 17).id == "angle/train/17"
    """
    problem = scene(task, split, index)
    return Prompt(
        id=f"{task}/{split}/{index}",
        question=f"<image>{problem.question}",
        answer=str(problem.answer),
        images=(Drawing(problem.picture),),
        task=task,
        columns={"level": problem.level, "percepts": dict(problem.percepts)},
    )


@lru_cache(maxsize=4096)
def scene(task: str, split: str, index: int) -> Scene:
    """The structured problem behind `make`: its picture, percepts and working."""
    _check(task, split)
    if index < 0:
        raise UserError(f"index {index} of {task}/{split} is negative: problems are numbered from 0.")
    rng = random.Random(_digest("problem", task, split, str(index)))
    level, ood = LEVELS[index % len(LEVELS)], split == "ood"
    wants_typical = not ood and rng.random() < TYPICAL_SHARE
    while True:
        problem = TASKS[task].draw(rng, level, ood=ood)
        if wants_typical and problem.answer != problem.typical_answer:
            continue
        if ood or _SPLIT_BY_TENTH[_digest("picture", repr(problem.picture)) % 10] == split:
            return problem


def dataset(split: str, size: int, tasks: Sequence[str] | None = None) -> Sequence[Prompt]:
    """The first `size` problems of a split, the tasks in turn."""
    chosen = tuple(TASKS) if tasks is None else tuple(tasks)
    if not chosen:
        raise UserError("tasks is empty: name at least one of " + ", ".join(TASKS) + ".")
    for task in chosen:
        _check(task, split)
    return [make(chosen[turn % len(chosen)], split, turn // len(chosen)) for turn in range(size)]


def solution(prompt: Prompt) -> str:
    """The full correct chain for a prompt of `make`, always the same for the same id."""
    task, split, index = _parse(prompt.id)
    return true_chain(scene(task, split, index), random.Random(_digest("solution", prompt.id)))


def shortcut(prompt: Prompt) -> str:
    """A response that ignores the image: the level's typical answer."""
    task, split, index = _parse(prompt.id)
    problem = scene(task, split, index)
    return guess(problem, problem.typical_answer, random.Random(_digest("shortcut", prompt.id)))


def _parse(prompt_id: str) -> tuple[str, str, int]:
    parts = prompt_id.split("/")
    if len(parts) != 3 or parts[0] not in TASKS or parts[1] not in SPLITS or not parts[2].isdecimal():
        raise UserError(
            f"prompt {prompt_id!r} is not a procedural one: expected an id such as angle/train/17."
        )
    return parts[0], parts[1], int(parts[2])


def _check(task: str, split: str) -> None:
    if task not in TASKS:
        raise UserError(f"task {task!r} is unknown: choose among {', '.join(TASKS)}.")
    if split not in SPLITS:
        raise UserError(f"split {split!r} is unknown: choose among {', '.join(SPLITS)}.")


def _digest(*words: str) -> int:
    """A hash that is the same on every machine and in every process."""
    return int.from_bytes(hashlib.blake2b("\0".join(words).encode(), digest_size=8).digest(), "big")
