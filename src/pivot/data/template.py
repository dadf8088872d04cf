"""What the model reads: the paper's reasoning template, verbatim for all models, or a template of the user's.

Text from data never becomes control tokens: `segments` returns text and image positions separately, and the encoder
tokenizes text that spells out a special token with `split_special_tokens=True`. A literal `<|image_pad|>` in a
question remains thirteen ordinary characters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pivot.errors import UserError
from pivot.types import Prompt

SYSTEM = "You are a helpful assistant."

INSTRUCTION = (
    "You first think through the reasoning process as an internal monologue, enclosed within <think> "
    "</think> tags. Then, provide your final answer enclosed within \\boxed{ }."
)

IMAGE_MARK = "<image>"
TEMPLATE = "{{ question | trim }}\n\n" + INSTRUCTION
"""`user_text` as a template."""
THINK = "<think>"

_VARIABLES = {"question", "content"}
"""What a template may use; `content` is EasyR1's name of the question."""
_RENDER_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
_JINJA = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined)
"""As transformers renders chat templates: no access to Python's internals, no change to its arguments."""


@dataclass(frozen=True)
class ImagePlace:
    """The position of one of the prompt's images in the user's turn."""

    index: int
    """Index into `Prompt.images`."""


Segment = str | ImagePlace


@dataclass(frozen=True)
class PromptStyle:
    """How questions are asked; by default as in the paper.

    Example:
        PromptStyle(template="{{ question }} Answer in <answer> </answer> tags.").apply(prompt)
    """

    system: str | None = None
    """The system message; None: the row's own, else the paper's; "": none, so that the chat template decides."""
    template: str | None = None
    """Jinja text of the user's turn; None: the paper's."""

    @property
    def asks_to_think(self) -> bool:
        """Whether responses are asked to begin with a `<think>` part."""
        return THINK in (self.template or TEMPLATE) or THINK in (self.system or "")

    def apply(self, prompt: Prompt) -> Prompt:
        """The prompt with its system message and its user's turn; unchanged where the style says nothing."""
        if self.system is not None:
            prompt = replace(prompt, system=self.system or None)
        if self.template is not None:
            prompt = replace(prompt, turn=render(self.template, prompt.question))
        return prompt


def read_template(given: str) -> str:
    """The Jinja text that `prompt.template` names: the text itself, or the content of a file; checked.

    Text has a `{{` or a line break, and anything else is a file.
    """
    text = given
    if not any(mark in given for mark in ("{{", "{%", "\n")):
        try:
            text = Path(given).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as cause:
            reason = cause.strerror if isinstance(cause, OSError) else "it is not UTF-8 text"
            raise UserError(
                f"the prompt template {given!r} cannot be read as a file ({reason}); give a file, or Jinja text with "
                "{{ question }}."
            ) from cause
    _compiled(text)
    render(text, "1 + 1 = ?")
    return text


def render(text: str, question: str) -> str:
    """The user's turn of a template for a question."""
    try:
        return _compiled(text).render(question=question, content=question)
    except _RENDER_ERRORS as cause:
        raise UserError(
            f"the prompt template cannot be rendered ({type(cause).__name__}: {cause})."
        ) from cause


@cache
def _compiled(text: str) -> jinja2.Template:
    try:
        used = jinja2.meta.find_undeclared_variables(_JINJA.parse(text))
        template = _JINJA.from_string(text)
    except jinja2.TemplateSyntaxError as cause:
        raise UserError(
            f"the prompt template is not valid Jinja (line {cause.lineno}: {cause.message})."
        ) from cause
    unknown = sorted(used - _VARIABLES)
    if unknown:
        raise UserError(
            f"the prompt template uses {{{{ {unknown[0]} }}}}, but it is given {{{{ question }}}} alone."
        )
    if not used:
        raise UserError("the prompt template has no {{ question }}; write where the question goes.")
    return template


def user_text(question: str) -> str:
    """The user's turn of the paper's template for a question.

    As in PAPO and VPPO, only outer whitespace is stripped; whitespace between an image mark and text is kept.
    """
    return f"{question.strip()}\n\n{INSTRUCTION}"


def system_text(prompt: Prompt) -> str:
    """The system message of a prompt; empty if it has none."""
    return SYSTEM if prompt.system == "" else prompt.system or ""


def segments(prompt: Prompt) -> tuple[Segment, ...]:
    """The user's turn as text and image positions in order; without marks the images come first.

    Example:
        "<image>Find x." -> (ImagePlace(0), "Find x.\\n\\nYou first think ...")
    """
    turn = user_text(prompt.question) if prompt.turn is None else prompt.turn
    pieces = turn.split(IMAGE_MARK)
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
    system = system_text(prompt)
    first = [{"role": "system", "content": system}] if system else []
    return [*first, {"role": "user", "content": content}]
