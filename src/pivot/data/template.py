"""The paper's reasoning template, letter for letter, for all models.

A user's text never turns into control tokens: `segments` hands out text and image places separately, and the
encoder tokenises text that spells out a special token with `split_special_tokens=True`, so that a literal
`<|image_pad|>` in a question stays thirteen ordinary characters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pivot.errors import UserError
from pivot.types import Prompt

SYSTEM = "You are a helpful assistant."

INSTRUCTION = (
    "You first think through the reasoning process as an internal monologue, enclosed within <think> "
    "</think> tags. Then, provide your final answer enclosed within \\boxed{ }."
)

IMAGE_MARK = "<image>"


@dataclass(frozen=True)
class ImagePlace:
    """Where one of the prompt's images stands in the user's turn."""

    index: int
    """Into `Prompt.images`."""


Segment = str | ImagePlace


def user_text(question: str) -> str:
    """The user's turn of the template around a question, which is trimmed as PAPO and VPPO trim it.

    Only the outer white space goes: what stands between an image mark and the words next to it stays.
    """
    return f"{question.strip()}\n\n{INSTRUCTION}"


def segments(prompt: Prompt) -> tuple[Segment, ...]:
    """The user's turn as text and image places in order; without marks the images come first.

    Example:
        "<image>Find x." -> (ImagePlace(0), "Find x.\\n\\nYou first think ...")
    """
    pieces = user_text(prompt.question).split(IMAGE_MARK)
    num_marks, num_images = len(pieces) - 1, len(prompt.images)
    if num_marks == 0:
        return (*(ImagePlace(index) for index in range(num_images)), pieces[0])
    if num_marks != num_images:
        raise UserError(
            f"prompt {prompt.id!r} has {num_marks} {IMAGE_MARK} marks for {num_images} images: "
            "write one mark for each image, or none to put the images first."
        )
    placed: list[Segment] = [pieces[0]]
    for index, piece in enumerate(pieces[1:]):
        placed += [ImagePlace(index), piece]
    return tuple(segment for segment in placed if segment != "")


def messages(prompt: Prompt) -> list[dict[str, Any]]:
    """The conversation in the form that Hugging Face chat templates take; images are opened."""
    content = [
        {"type": "text", "text": segment}
        if isinstance(segment, str)
        else {"type": "image", "image": prompt.images[segment.index].open()}
        for segment in segments(prompt)
    ]
    return [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": content},
    ]
