"""What the second phase of pretraining teaches: guessing, and stating percepts without looking.

The skill stays latent and errors come from language priors. Their frequency depends on the question's wording, so that
success rates vary between prompts.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from pivot.tiny.procedural.chain import Words, favourite, guess, reasoning, true_chain
from pivot.tiny.procedural.scene import Scene


@dataclass(frozen=True)
class Habits:
    """How often each bad habit occurs.

    Example:
        Habits(guess_by_wording=(0.1, 0.3, 0.5), misperceive=0.25)
    """

    guess_by_wording: tuple[float, float, float]
    """Probability of a guess for each of the three phrasings of a question."""
    misperceive: float
    """Probability that a percept is taken from the language prior; the computation follows it."""
    words: Words = "usual"
    """How many filler words the chains have."""

    def respond(self, scene: Scene, rng: random.Random) -> str:
        """A response with these habits."""
        if rng.random() < self.guess_by_wording[scene.wording]:
            return guess(scene, self._guessed_answer(scene, rng), rng, self.words)
        values = [
            favourite(scene.typical_percepts, rng) if rng.random() < self.misperceive else value
            for _, value in scene.percepts
        ]
        return reasoning(scene, values, rng, self.words)

    def _guessed_answer(self, scene: Scene, rng: random.Random) -> int:
        if rng.random() < 0.6:
            return scene.typical_answer
        return scene.work([favourite(scene.typical_percepts, rng) for _ in scene.percepts]).answer


def skilled(scene: Scene, rng: random.Random) -> str:
    """The first phase's response: always the right chain."""
    return true_chain(scene, rng)
