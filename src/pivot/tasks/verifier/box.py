"""Find the last `\\boxed{...}` of a response and check the form that the template asks for."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_BOX_CHARS = 2_000
"""A longer box is no answer; it also bounds everything that runs after extraction."""
SEARCHED_CHARS = 65_536
"""Boxes are searched in this many last characters of a response (2,048 tokens are about 8,000)."""

_BOX = re.compile(r"\\boxed\s{0,3}\{")
_BRACES = re.compile(r"\\boxed\s{0,3}\{|\\.|[{}]", re.DOTALL)
_OPEN, _CLOSE = "<think>", "</think>"


@dataclass(frozen=True)
class Box:
    """The content of a box, without outer blanks, and where in the response its `\\boxed` begins."""

    content: str
    start: int


def last_box(response: str) -> Box | None:
    """The balanced `\\boxed{...}` that begins last; of nested boxes that is the inner one.

    Escaped braces (`\\{`, `\\}`) are text. A box that is never closed is passed over. One pass over at most
    `SEARCHED_CHARS` characters, without recursion.
    """
    offset = max(0, len(response) - SEARCHED_CHARS)
    tail = response[offset:]
    begin = tail.rfind("\\boxed")
    if begin < 0:
        return None
    # Nearly always the very last one is closed, and nothing before it has to be looked at.
    box = _last_closed(tail, begin) or _last_closed(tail, 0)
    return None if box is None else Box(box.content, box.start + offset)


def _last_closed(text: str, begin: int) -> Box | None:
    open_braces: list[tuple[int, int]] = []
    best: Box | None = None
    span = (0, 0)
    for found in _BRACES.finditer(text, begin):
        token = found.group()
        if token == "{":
            open_braces.append((-1, 0))
        elif token == "}":
            start, inner = open_braces.pop() if open_braces else (-1, 0)
            if start >= 0 and (best is None or start > best.start):
                best, span = Box("", start), (inner, found.start())
        elif _BOX.match(token):
            open_braces.append((found.start(), found.end()))
    return None if best is None else Box(text[slice(*span)].strip(), best.start)


def very_last_box(response: str) -> Box | None:
    """What `mathruler.grader.extract_boxed_content` finds: the very last `\\boxed{`, all braces counted.

    It looks no further than one character beyond `MAX_BOX_CHARS`.
    """
    start = response.rfind("\\boxed{")
    if start < 0:
        return None
    begin = start + len("\\boxed{")
    depth = 1
    for place, sign in enumerate(response[begin : begin + MAX_BOX_CHARS + 1], begin):
        depth += (sign == "{") - (sign == "}")
        if depth == 0:
            return Box(response[begin:place].strip(), start)
    is_cut = len(response) - begin > MAX_BOX_CHARS
    return Box(response[begin : begin + MAX_BOX_CHARS + 1], start) if is_cut else None


def follows_template(response: str) -> bool:
    """Whether the response is `<think> ... </think> ... \\boxed{...}`.

    Exactly: after optional blanks it begins with `<think>`; there is one `<think>` and one `</think>`; and
    the last balanced box begins after the closing tag. What stands between the tags and around the box is
    free.
    """
    if not response[:SEARCHED_CHARS].lstrip().startswith(_OPEN):
        return False
    if response.count(_OPEN) != 1 or response.count(_CLOSE) != 1:
        return False
    box = last_box(response)
    return box is not None and response.index(_CLOSE) < box.start
