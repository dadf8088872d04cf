"""The paper's reasoning template, verbatim, for all models.

Text from data never becomes control tokens: `segments` returns text and image positions separately, and the encoder
tokenizes text that spells out a special token with `split_special_tokens=True`. A literal `<|image_pad|>` in a
question remains thirteen ordinary characters.
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
    """The position of one of the prompt's images in the user's turn."""

    index: int
    """Index into `Prompt.images`."""


Segment = str | ImagePlace


def user_text(question: str) -> str:
    """The user's turn of the template for a question.

    As in PAPO and VPPO, only outer whitespace is stripped; whitespace between an image mark and text is kept.
    """
    return f"{question.strip()}\n\n{INSTRUCTION}"


def segments(prompt: Prompt) -> tuple[Segment, ...]:
    """The user's turn as text and image positions in order; without marks the images come first.

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
            "write one mark per image, or none to put the images first."
        )
    placed: list[Segment] = [pieces[0]]
    for index, piece in enumerate(pieces[1:]):
        placed += [ImagePlace(index), piece]
    return tuple(segment for segment in placed if segment != "")


def messages(prompt: Prompt) -> list[dict[str, Any]]:
    """The conversation in the format of Hugging Face chat templates, with opened images."""
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
