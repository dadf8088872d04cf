"""Renders a model's chat template within limits of time and memory.

A chat template is a program that comes with the model. It is rendered in a forked process, which the kernel ends when
its time is over, whatever it computes.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pivot.errors import UserError

Messages = list[dict[str, Any]]
SECONDS = 10.0
MEGABYTES = 1024
"""Beyond what the process has already."""
MAX_CHARS = 100_000
_REPLIES: dict[str, list[dict[str, str]]] = {}
"""By template, special tokens and conversations."""


def frame_of(tokenizer: Any, conversations: Sequence[Messages], content: str) -> tuple[str, str]:
    """What the template writes before and after `content`, for the first conversation with which it prints it.

    The start of the model's answer is part of what follows. Raises a UserError if no conversation works.
    """
    if tokenizer.chat_template is None:
        raise UserError("the model has no chat template; add a chat_template.jinja to its folder")
    replies = _rendered(tokenizer, conversations)
    for reply in replies:
        before, found, after = reply.get("text", "").partition(content)
        if found:
            return before, after
    problem = next(
        (reply["problem"] for reply in replies if "problem" in reply), "it does not print the user's text"
    )
    raise UserError(f"the model's chat template cannot be used: {problem.rstrip('.')}; correct the template")


def _rendered(tokenizer: Any, conversations: Sequence[Messages]) -> list[dict[str, str]]:
    """A reply for each conversation. What a template has written once in this process it need not write again."""
    seen = json.dumps([tokenizer.chat_template, tokenizer.special_tokens_map, conversations], default=str)
    if seen not in _REPLIES:
        _REPLIES[seen] = _rendered_apart(tokenizer, conversations)
    return _REPLIES[seen]


def _rendered_apart(tokenizer: Any, conversations: Sequence[Messages]) -> list[dict[str, str]]:
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receiver)
        _render_and_exit(tokenizer, conversations, sender)
    os.close(sender)
    with os.fdopen(receiver, "rb") as stream:
        sent = stream.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
        raise UserError(f"the model's chat template does not end within {SECONDS:g} s; correct the template")
    if not sent:
        raise UserError("the model's chat template ended the process that renders it; correct the template")
    return json.loads(sent)


def _render_and_exit(tokenizer: Any, conversations: Sequence[Messages], sender: int) -> None:
    """In the child: send what is rendered, and end without running anything of the parent's."""
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        _limit_memory()
        replies = [_render(tokenizer, messages) for messages in conversations]
        with os.fdopen(sender, "wb") as stream:
            stream.write(json.dumps(replies).encode())
    finally:
        os._exit(0)


def _render(tokenizer: Any, messages: Messages) -> dict[str, str]:
    try:
        text = str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
    except Exception as error:  # noqa: BLE001 - a template may raise anything; reported, not swallowed
        sentence = " ".join(str(error).split())[:300]
        return {"problem": f"it raises {type(error).__name__}" + (f": {sentence}" if sentence else "")}
    if len(text) > MAX_CHARS:
        return {"problem": f"it writes {len(text):,} characters around a short text"}
    return {"text": text}


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEGABYTES * 2**20, hard))
