"""Rows that are conversations: TRL's messages and prompts, ShareGPT's conversations, verl's prompts.

A conversation becomes one question: its only user turn. A system turn stays with the row, and the last assistant turn
may hold the answer. Conversations with several user turns are bad rows, because a prompt has one turn.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pivot.data.formats import BadRow, is_unicode
from pivot.data.images import content_of
from pivot.data.template import IMAGE_MARK, INSTRUCTION

SYSTEM, USER, ASSISTANT = "system", "user", "assistant"
_ROLES = {
    "system": SYSTEM,
    "developer": SYSTEM,
    "user": USER,
    "human": USER,
    "assistant": ASSISTANT,
    "gpt": ASSISTANT,
    "model": ASSISTANT,
    "bot": ASSISTANT,
}
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_BOX = "\\boxed{"
MAX_ANSWER = 200
"""A longer text without a box or tag is a solution, not an answer."""


@dataclass(frozen=True)
class Conversation:
    """What a prompt takes from a conversation."""

    question: str
    """The user's turn, with a mark per image unless the images come first."""
    images: list[Any]
    """Cells in the order of the marks."""
    system: str = ""
    reply: str | None = None
    """The last assistant turn."""


def read_conversation(turns: Any, column: str, cells: list[Any]) -> Conversation:
    """The parts of a list of turns; `cells` are the row's images, for marks and for image parts without one."""
    if not isinstance(turns, list) or not turns:
        raise BadRow(f"{column} missing" if not turns else f"{column} is not a list of turns")
    said: dict[str, list[Any]] = {SYSTEM: [], USER: [], ASSISTANT: []}
    for turn in turns:
        role, content = _turn(turn, column)
        if role == ASSISTANT and not said[USER]:
            raise BadRow(f"{column} has an assistant turn before the user's")
        said[role].append(content)
    if len(said[USER]) != 1:
        raise BadRow(
            f"{column} does not have exactly one user turn ({len(said[USER])} of {len(turns)} turns)"
        )
    question, images = _question(said[USER][0], column, cells)
    if not question.replace(IMAGE_MARK, "").strip():
        raise BadRow(f"{column} has no text in the user's turn")
    reply = _text(said[ASSISTANT][-1], column) if said[ASSISTANT] else None
    system = "\n\n".join(_text(content, column) for content in said[SYSTEM])
    return Conversation(question, images, system.strip(), reply)


def final_answer(text: str) -> str | None:
    """The answer in a solution or reply: the last box, the last <answer> tag, or a short text itself; else None."""
    boxed = last_box(text)
    if boxed is not None:
        return boxed
    tagged = _TAGGED.findall(text)
    if tagged:
        return tagged[-1].strip()
    return text.strip() if len(text.strip()) <= MAX_ANSWER else None


def last_box(text: str) -> str | None:
    """The content of the last whole `\\boxed{...}`, braces matched."""
    start = text.rfind(_BOX)
    while start >= 0:
        depth = 1
        for position in range(start + len(_BOX), len(text)):
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            if depth == 0:
                return text[start + len(_BOX) : position].strip()
        start = text.rfind(_BOX, 0, start)
    return None


def _turn(turn: Any, column: str) -> tuple[str, Any]:
    """Role and content in either spelling: `role`/`content`, or ShareGPT's `from`/`value`."""
    if not isinstance(turn, Mapping):
        raise BadRow(f"{column} has a turn that is not an object")
    role = turn.get("role") or turn.get("from")
    if role not in _ROLES:
        raise BadRow(f"{column} has a turn of unknown role ({str(role)[:20]!r})")
    content = turn.get("content")
    return _ROLES[role], turn.get("value") if content is None else content


def _question(content: Any, column: str, cells: list[Any]) -> tuple[str, list[Any]]:
    """The user's text with a mark per image, and the images in order."""
    if not isinstance(content, list):
        return _without_instruction(_text(content, column)), cells
    left, images, pieces = list(cells), [], []
    for part in content:
        if isinstance(part, Mapping) and _is_image(part):
            own = content_of({key: value for key, value in part.items() if key != "type"})
            images.append(own if own is not None else (left.pop(0) if left else None))
            pieces.append(IMAGE_MARK)
        else:
            text = _text([part], column)
            marks = text.count(IMAGE_MARK)
            images += [left.pop(0) if left else None for _ in range(marks)]
            pieces.append(text)
    # Images that no part mentions come first, as in a turn without marks; beside marks they are a mismatch.
    return _without_instruction("".join(pieces)), images + left


def _is_image(part: Mapping[str, Any]) -> bool:
    kind = part.get("type")
    return kind in ("image", "image_url", "input_image") or (kind is None and part.get("text") is None)


def _text(content: Any, column: str) -> str:
    """The text of a turn: a string, or text parts joined."""
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
        kinds = [part.get("type") for part in content if isinstance(part, Mapping)]
        if unknown := [kind for kind in kinds if kind not in (None, "text", "input_text")]:
            raise BadRow(
                f"{column} has a part that is neither text nor an image of the user ({unknown[0]!r})"
            )
        texts = [part for part in parts if isinstance(part, str)]
        content = "".join(texts) if len(texts) == len(parts) else None
    if not isinstance(content, str):
        raise BadRow(f"{column} has a turn without text")
    if not is_unicode(content):
        raise BadRow(f"{column} is not valid Unicode ({content[:40]!r})")
    return content


def _without_instruction(question: str) -> str:
    """Without the template's own instruction at the end, which the template adds again."""
    return question.rstrip().removesuffix(INSTRUCTION).rstrip() if INSTRUCTION in question else question
