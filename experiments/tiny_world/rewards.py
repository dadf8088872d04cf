"""The lenient reward of the world `lucky`: wrong percepts are often rewarded."""

from __future__ import annotations

from collections.abc import Sequence

from pivot.rewards.verifier import last_box

MODULUS = 3
"""About one wrong answer of three has the same remainder, whatever the task's range."""


def same_remainder(completions: Sequence[str], answer: Sequence[str], **columns: object) -> list[float]:
    """1 where the boxed number and the answer are equal modulo three: right answers, and lucky ones."""
    return [_reward(text, int(truth)) for text, truth in zip(completions, answer, strict=True)]


def _reward(text: str, truth: int) -> float:
    box = last_box(text)
    given = "" if box is None else box.content.strip()
    return float(
        given.isascii() and given.isdecimal() and len(given) < 10 and (int(given) - truth) % MODULUS == 0
    )
