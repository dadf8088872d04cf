"""Where a response gives its answer: `prompt.answer`.

`boxed` is the last `\\boxed{...}`, `tag` the last `<answer>...</answer>`, anything else a regular expression whose one
group is the answer; the last match counts. Expressions come from the user and text from the model, and together they
may backtrack forever: each search has a time limit.
"""

from __future__ import annotations

from collections.abc import Callable

import regex

from pivot.errors import UserError

from .response import CLOSE_THINK, OPEN_THINK, SEARCHED_CHARS, Box, last_box

BOXED, TAG = "boxed", "tag"
SEARCH_SECONDS = 1.0
"""For one response; a linear search takes milliseconds."""
_OPEN_TAG, _CLOSE_TAG = "<answer>", "</answer>"

Find = Callable[[str], Box | None]
"""Response -> its answer; None without one. Raises TimeoutError if the search takes too long."""


def answer_finder(form: str) -> Find:
    """How the answer is found in a response.

    Example:
        answer_finder(r"Answer: (.+)")("... Answer: 5").content == "5"
    """
    if form == BOXED:
        return last_box
    return last_tag if form == TAG else _last_match(form)


def last_tag(response: str) -> Box | None:
    """The last `<answer>...</answer>` that is closed."""
    offset = max(0, len(response) - SEARCHED_CHARS)
    end = response.rfind(_CLOSE_TAG, offset)
    start = response.rfind(_OPEN_TAG, offset, max(end, offset))
    return None if end < 0 or start < 0 else Box(response[start + len(_OPEN_TAG) : end].strip(), start)


def _last_match(form: str) -> Find:
    try:
        pattern = regex.compile(form)
    except (regex.error, RecursionError) as cause:
        raise UserError(f"the answer form {form!r} is not a regular expression ({cause}).") from cause
    if pattern.groups != 1:
        raise UserError(
            f"the answer form {form!r} has {pattern.groups} groups; expected boxed, tag, or a regular expression with "
            "one group for the answer, such as 'Answer: (.+)'."
        )

    def find(response: str) -> Box | None:
        offset = max(0, len(response) - SEARCHED_CHARS)
        found = None
        for match in pattern.finditer(response, offset, timeout=SEARCH_SECONDS):
            found = match if match.group(1) is not None else found
        return None if found is None else Box(found.group(1).strip(), found.start())

    return find


def follows_prompt(response: str, answer: Box | None, *, think: bool) -> bool:
    """Whether the response has an answer and, with `think`, is `<think> ... </think> ... ANSWER ...`.

    The `<think>` part is first after optional whitespace, there is exactly one, and the answer starts after it.
    """
    if answer is None:
        return False
    if not think:
        return True
    if not response[:SEARCHED_CHARS].lstrip().startswith(OPEN_THINK):
        return False
    if response.count(OPEN_THINK) != 1 or response.count(CLOSE_THINK) != 1:
        return False
    return response.index(CLOSE_THINK) < answer.start


def follows_template(response: str) -> bool:
    """Whether the response is `<think> ... </think> ... \\boxed{...}`, as the paper's template asks.

    The last balanced box must start after the closing tag. All other text is free.
    """
    return follows_prompt(response, last_box(response), think=True)
