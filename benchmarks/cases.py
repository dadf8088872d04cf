"""What every contender agrees on. Nothing here needs the project: the peer reads it from an environment of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

CASES = {"fixed": (48, 48), "natural": (96, 0)}
"""Name -> most and fewest tokens of a response."""
PROMPTS, RESPONSES = 16, 8
"""Of a step: prompts, and responses to each."""


def parity(completions: Sequence[Any], **_: Any) -> list[float]:
    """Half of all responses are right, in a way that no training changes: the work stays the same from turn to turn."""
    texts = [text if isinstance(text, str) else text[0]["content"] for text in completions]
    return [float(sum(text.encode()) % 2) for text in texts]
