"""How a chat template prints a user's turn with images, found by rendering one.

Some templates print an image where it is, some print all images before the text, some put a line break beside an image
or strip the text around it. The template is rendered once with two images and two texts, and what it prints is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pivot.data.template import ImagePlace, Segment
from pivot.errors import UserError
from pivot.models.chat_template import frame_of

FIRST, SECOND, SYSTEM = (
    f"\N{OBJECT REPLACEMENT CHARACTER}{name}\N{OBJECT REPLACEMENT CHARACTER}"
    for name in ("first", "second", "system")
)
"""Stand for texts while the template is rendered."""


class Trusted(str):
    """Text of the chat template, whose special tokens are meant."""


@dataclass(frozen=True)
class Turn:
    """What a chat template prints around the parts of a turn that begins with an image.

    Example:
        Turn("<|im_start|>user\\n", before_image="", after_image="\\n", strips=False)
    """

    opening: str
    """Before everything, the system message included."""
    before_image: str
    after_image: str
    strips: bool
    """Whether the whitespace around a text is lost."""
    images_first: ImagesFirst | None = None
    """None: images stay where they are."""

    def arrange(self, segments: Sequence[Segment]) -> list[Segment]:
        """The user's texts and images as the template prints them."""
        if self.strips:
            segments = [s.strip() if isinstance(s, str) else s for s in segments]
        if self.images_first is not None and any(isinstance(s, ImagePlace) for s in segments):
            return self.images_first.arrange(segments)
        parts: list[Segment] = []
        for segment in segments:
            if isinstance(segment, ImagePlace):
                parts += [Trusted(self.before_image), segment, Trusted(self.after_image)]
            else:
                parts.append(segment)
        return parts


@dataclass(frozen=True)
class ImagesFirst:
    """What is printed where all images come before all texts."""

    between_images: str
    before_texts: str
    between_texts: str

    def arrange(self, segments: Sequence[Segment]) -> list[Segment]:
        parts: list[Segment] = []
        for image in (s for s in segments if isinstance(s, ImagePlace)):
            parts += [Trusted(self.between_images if parts else ""), image]
        between = self.before_texts
        for text in (s for s in segments if isinstance(s, str)):
            parts += [Trusted(between), text]
            between = self.between_texts
        return parts


def read_turn(tokenizer: Any, image_mark: str, with_system: bool) -> Turn:
    """Render image, text, image, text; `image_mark` is what the template prints for an image."""
    image = {"type": "image"}
    texts = [{"type": "text", "text": f" {text} "} for text in (FIRST, SECOND)]
    user = {"role": "user", "content": [image, texts[0], image, texts[1]]}
    systems = ([{"type": "text", "text": SYSTEM}], SYSTEM)
    conversations = [[*[{"role": "system", "content": system}] * with_system, user] for system in systems]
    before, after = frame_of(tokenizer, conversations, FIRST)
    between, found, _ = after.partition(SECOND)
    count = before.count(image_mark), between.count(image_mark)
    if not found or count not in ((1, 1), (2, 0)):
        raise UserError(
            f"the model's chat template prints no {image_mark} where a message has an image; give the model a chat "
            "template that does, as chat_template.jinja in its folder"
        )
    strips = not before.endswith(" ") or not between.startswith(" ")
    if not strips:
        before, between = before[:-1], between[1:-1]
    opening, _, behind = before.partition(image_mark)
    if count == (2, 0):
        gap, _, before_texts = behind.partition(image_mark)
        return Turn(opening, "", "", strips, ImagesFirst(gap, before_texts, between))
    before_image = between.partition(image_mark)[0]
    return Turn(opening.removesuffix(before_image), before_image, behind, strips)
