"""Extract the last `\\boxed{...}` of a response and check its format, by our rules and by PAPO's."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_BOX_CHARS = 2_000
"""A longer box counts as wrong; this bounds everything that runs after extraction."""
SEARCHED_CHARS = 65_536
"""Only this many trailing characters of a response are searched for boxes (2,048 tokens are about 8,000)."""

_BOX = re.compile(r"\\boxed\s{0,3}\{")
_BRACES = re.compile(r"\\boxed\s{0,3}\{|\\.|[{}]", re.DOTALL)
OPEN_THINK, CLOSE_THINK = "<think>", "</think>"
_AFTER_TAG_CHAR = re.compile(r"([<>/])\s+")
_PLAIN_BOX = "\\boxed{"
_CURLY = re.compile(r"[{}]")


@dataclass(frozen=True)
class Box:
    """The stripped content of a box or another kind of answer, and where in the response it starts."""

    content: str
    start: int


def last_box(response: str) -> Box | None:
    """The balanced `\\boxed{...}` that starts last; of nested boxes that is the inner one.

    Escaped braces (`\\{`, `\\}`) are text. A box that is never closed is ignored. One pass over at most
    `SEARCHED_CHARS` characters, without recursion.
    """
    offset = max(0, len(response) - SEARCHED_CHARS)
    tail = response[offset:]
    begin = tail.rfind("\\boxed")
    if begin < 0:
        return None
    # Usually the very last box is closed and nothing before it needs to be scanned.
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


def papo_text(response: str) -> str:
    """The response as PAPO's reward function sees it: without whitespace on either side of `<`, `>` and `/`.

    Equivalent to replacing `\\s*(<|>|/)\\s*` by its group, but in linear time: that expression takes time
    quadratic in the length of a run of whitespace.

    Example:
        "< think >1 / 2" -> "<think>1/2"
    """
    for _ in ("whitespace after", "whitespace before, on the reversed text"):
        response = _AFTER_TAG_CHAR.sub(r"\1", response)[::-1]
    return response


def papo_box(response: str) -> str | None:
    """What PAPO grades: the content of the very last `\\boxed{` in `papo_text`, counting every brace.

    None if that box is never closed, even if an earlier one is. Same as mathruler's `extract_boxed_content`, which
    returns the text `None` without a box.
    """
    text = papo_text(response)
    start = text.rfind(_PLAIN_BOX)
    if start < 0:
        return None
    begin = start + len(_PLAIN_BOX)
    depth = 1
    for brace in _CURLY.finditer(text, begin):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return text[begin : brace.start()].strip()
    return None


def follows_papo_format(response: str) -> bool:
    """Whether all of `papo_text` matches `<think>.*</think>.*\\\\boxed\\{.*\\}.*`, where a dot matches newlines too.

    Tags may repeat, any box after a closing tag counts, and its braces need not balance. Searching for each part
    once from the left takes linear time; the expression itself backtracks.
    """
    text = papo_text(response)
    if not text.startswith(OPEN_THINK):
        return False
    place = len(OPEN_THINK)
    for part in (CLOSE_THINK, _PLAIN_BOX, "}"):
        found = text.find(part, place)
        if found < 0:
            return False
        place = found + len(part)
    return True
