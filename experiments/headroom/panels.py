"""Problems on four panels: two or three of them are asked about, the others distract.

Each panel is a problem of `pivot.tiny.procedural`, so a picture has 168 x 168 pixels, which are 36 image tokens, and a
chain first states the percepts of all panels asked about, then computes with each and combines the results. Problems
are reproducible by (split, index); the panels of a problem belong to its split.

Levels: 1 the sum of two panels; 2 the difference of two; 3 the sum of two less a third. Out of domain: panels look and
range as in the tiny world's split `ood`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from pivot.seeding import stable_seed
from pivot.tiny import procedural
from pivot.tiny.habits import Habits
from pivot.tiny.procedural.canvas import SIZE
from pivot.tiny.procedural.chain import CHECKS, CLOSERS, GUESSES, LINKS, LOOKS, OPENERS, favourite
from pivot.tiny.procedural.scene import LEVELS, Picture, Scene, Working
from pivot.types import Prompt

PLACES = {"top left": (0, 0), "top right": (SIZE, 0), "bottom left": (0, SIZE), "bottom right": (SIZE, SIZE)}
SPLITS = procedural.SPLITS
SAID = {
    1: "Add the two results.",
    2: "What is the first result minus the second?",
    3: "Add the first two results and subtract the third.",
}
"""Level -> how the panels are combined."""


@dataclass(frozen=True)
class Panels(Picture):
    """Four pictures in the corners."""

    panels: tuple[Picture, ...]

    def render(self) -> Image.Image:
        whole = Image.new("RGB", (2 * SIZE, 2 * SIZE), "white")
        for place, panel in zip(PLACES.values(), self.panels, strict=True):
            whole.paste(panel.render(), place)
        return whole


@dataclass(frozen=True)
class PanelProblem:
    """Four scenes, and the places that the question is about, in its order."""

    scenes: tuple[Scene, ...]
    asked: tuple[int, ...]
    level: int

    @property
    def picture(self) -> Panels:
        return Panels(tuple(scene.picture for scene in self.scenes))

    @property
    def parts(self) -> list[Scene]:
        """The scenes that are asked about."""
        return [self.scenes[place] for place in self.asked]

    @property
    def question(self) -> str:
        names = list(PLACES)
        said = [f"{names[place].capitalize()}: {self.scenes[place].question}" for place in self.asked]
        return " ".join([*said, SAID[self.level]])

    @property
    def percepts(self) -> list[tuple[str, int]]:
        """Of all panels asked about, in the order of the chain."""
        return [percept for scene in self.parts for percept in scene.percepts]

    def work(self, values: list[int]) -> Working:
        """The computation from percept values, whether true or not."""
        steps: list[str] = []
        results: list[int] = []
        for scene in self.parts:
            own, values = values[: len(scene.percepts)], values[len(scene.percepts) :]
            working = scene.work(own)
            steps += working.steps
            results.append(working.answer)
        totals = self.combine(results)
        steps.append(f"{results[0]}{'-' if self.level == 2 else '+'}{results[1]}={totals[0]}")
        if self.level == 3:
            steps.append(f"{totals[0]}-{results[2]}={totals[1]}")
        return Working(tuple(steps), totals[-1])

    def combine(self, results: Sequence[int]) -> list[int]:
        """The sum or difference of the first two results and, at level 3, that less the third."""
        first = results[0] - results[1] if self.level == 2 else results[0] + results[1]
        return [first, first - results[2]] if self.level == 3 else [first]

    @property
    def answer(self) -> int:
        return self.work([value for _, value in self.percepts]).answer


def problem(split: str, index: int) -> PanelProblem:
    """Problem number `index` of a split; the level is 1 + index % 3.

    Example:
        problem("train", 17).level == 3
    """
    rng = random.Random(stable_seed("panels", split, index))
    level = LEVELS[index % len(LEVELS)]
    tasks = rng.sample(list(procedural.TASKS), len(PLACES))
    scenes = tuple(procedural.scene(task, split, rng.randrange(1 << 40)) for task in tasks)
    asked = tuple(rng.sample(range(len(PLACES)), 3 if level == 3 else 2))
    return PanelProblem(scenes, asked, level)


def prompt(split: str, index: int) -> Prompt:
    """The problem as a prompt, `panels/train/17`."""
    found = problem(split, index)
    return Prompt(
        id=f"panels/{split}/{index}",
        question=f"<image>{found.question}",
        answer=str(found.answer),
        images=(procedural.Drawing(found.picture),),
        task="panels",
        columns={"level": found.level, "percepts": dict(found.percepts)},
    )


def chain(found: PanelProblem, values: list[int], rng: random.Random) -> str:
    """The response that states `values` as the percepts and computes with them.

    The percepts are one sentence, from its first equals sign to its full stop, as `examples.Batch.percepts_BL` expects.
    """
    names = [name for name, _ in found.percepts]
    seen = ", ".join(f"{name}={value}" for name, value in zip(names, values, strict=True))
    working = found.work(values)
    thought = [
        rng.choice(OPENERS),
        f"{rng.choice(LOOKS)} {seen}.",
        f"{rng.choice(LINKS)} {', '.join(working.steps)}.",
        rng.choice(CHECKS),
    ]
    inside = " ".join(sentence for sentence in thought if sentence)
    return f"<think> {inside} </think> {rng.choice(CLOSERS)} \\boxed{{{working.answer}}}."


def true_chain(found: PanelProblem, rng: random.Random) -> str:
    """The full correct chain."""
    return chain(found, [value for _, value in found.percepts], rng)


def habitual_response(found: PanelProblem, rng: random.Random, habits: Habits) -> str:
    """A response with the tiny world's bad habits: a guess, or percepts named without looking."""
    if rng.random() < habits.guess_by_wording[found.parts[0].wording]:
        return guess(found, rng)
    values = [
        favourite(scene.typical_percepts, rng) if rng.random() < habits.misperceive else value
        for scene in found.parts
        for _, value in scene.percepts
    ]
    return chain(found, values, rng)


def guess(found: PanelProblem, rng: random.Random) -> str:
    """The response that combines the panels' typical answers without looking."""
    first, *_ = found.parts
    answer = found.combine([scene.typical_answer for scene in found.parts])[-1]
    thought = f"{rng.choice(OPENERS)} I think {first.hunch}, {rng.choice(GUESSES)} {answer}."
    return f"<think> {thought} </think> {rng.choice(CLOSERS)} \\boxed{{{answer}}}."
