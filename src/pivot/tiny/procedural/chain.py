"""Chains of thought in the paper's format, with filler words: first the percepts, then the computation.

There are three kinds: the correct chain, the chain computed from misperceived values, and the guess without looking.
The last two are the bad habits of the shipped checkpoints.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

from pivot.tiny.procedural.scene import Scene

OPENERS = (
    "Let me look at the picture.",
    "Okay, first I look closely.",
    "Hmm, let me see what is given.",
    "Well, I read the picture first.",
    "Alright, what do we have here?",
)
LOOKS = ("I see", "Here", "I read", "It shows")
LINKS = (
    "So now",
    "Then",
    "That gives",
    "Well, so",
    "Okay, now",
)
CHECKS = ("", "", "That seems right.", "I think that is fine.", "Good.")
CLOSERS = ("The answer is", "So the answer is", "Hence it is", "It is")
Words = Literal["none", "usual", "many"]
"""How many filler words a chain has; the shipped checkpoints have `usual`."""
GUESSES = ("so I would say", "so probably it is", "so I guess", "so it should be")


def reasoning(scene: Scene, values: Sequence[int], rng: random.Random, words: Words = "usual") -> str:
    """The response that states `values` as its percepts and computes with them, whether they are true or not.

    Example:
        <think> Let me look at the picture. I see angle A=40, angle B=70. Then 40+70=110, 180-110=70. </think>
        The answer is \\boxed{70}.
    """
    names = [name for name, _ in scene.percepts]
    seen = ", ".join(f"{name}={value}" for name, value in zip(names, values, strict=True))
    working = scene.work(values)
    if words == "none":
        return _response([f"{seen}.", f"{', '.join(working.steps)}."], working.answer, rng)
    thought = [
        rng.choice(OPENERS),
        f"{rng.choice(LOOKS)} {seen}.",
        f"{rng.choice(LINKS)} {', '.join(working.steps)}.",
        rng.choice(CHECKS),
    ]
    return _response(_with_more_words(thought, rng) if words == "many" else thought, working.answer, rng)


def guess(scene: Scene, answer: int, rng: random.Random, words: Words = "usual") -> str:
    """The response that takes the language-prior shortcut."""
    thought = [rng.choice(OPENERS), f"I think {scene.hunch}, {rng.choice(GUESSES)} {answer}."]
    if words == "none":
        thought = thought[1:]
    return _response(_with_more_words(thought, rng) if words == "many" else thought, answer, rng)


def _with_more_words(thought: list[str], rng: random.Random) -> list[str]:
    """Two more openers in front, and a check after every sentence."""
    talk = CHECKS[2:]
    chatty = [sentence for said in thought for sentence in (said, rng.choice(talk))]
    return [*rng.sample(OPENERS, 2), *chatty]


def _response(thought: list[str], answer: int, rng: random.Random) -> str:
    inside = " ".join(sentence for sentence in thought if sentence)
    return f"<think> {inside} </think> {rng.choice(CLOSERS)} \\boxed{{{answer}}}."


def true_chain(scene: Scene, rng: random.Random) -> str:
    """The full correct chain."""
    return reasoning(scene, [value for _, value in scene.percepts], rng)


def favourite(options: Sequence[int], rng: random.Random) -> int:
    """A draw that prefers the first options: weights 8, 4, 2, 1, ..."""
    weights = [2.0 ** (len(options) - place) for place in range(len(options))]
    return rng.choices(options, weights)[0]
