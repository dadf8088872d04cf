"""How a reward function is called, in a process of its own or in a thread: what it is given and what it may return.

TRL's convention: `f(completions=[...], **columns)` returns one number, or None, per completion. A function without
`**columns` receives the columns that its parameters name. It may be a coroutine function. Uses the standard library
only, so that a function without torch starts quickly.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pivot.errors import UserError

IMAGES = "images"
"""A parameter of this name receives the images of each row, decoded."""
Reply = dict[str, Any]
"""`{"values": [1.0, None]}`, `{"returned": "a float"}`, `{"raised": "KeyError: 'x' (rewards.py, line 12)"}` or
`{"asks": "level", "columns": ["answer", "completions", "prompts"]}`."""


@dataclass(frozen=True)
class Signature:
    """What a function asks for."""

    names: frozenset[str]
    required: tuple[str, ...]
    takes_all: bool
    """It has `**columns`, or its signature cannot be read."""

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Signature:
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            return cls(frozenset(), (), True)
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        return cls(
            names=frozenset(p.name for p in named),
            required=tuple(p.name for p in named if p.default is p.empty),
            takes_all=any(p.kind is p.VAR_KEYWORD for p in parameters),
        )

    @property
    def wants_images(self) -> bool:
        return IMAGES in self.names


class Caller:
    """Calls one function; coroutines run on one event loop, so that a client may be kept between calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.signature = Signature.of(function)
        self._function = function
        self._loop: asyncio.Runner | None = None

    def call(self, columns: Mapping[str, Any]) -> Reply:
        """What the function returned or raised."""
        asked = self.signature
        missing = [name for name in asked.required if name not in columns]
        if missing:
            return {"asks": missing[0], "columns": sorted(columns)}
        given = {n: v for n, v in columns.items() if asked.takes_all or n in asked.names}
        try:
            values = self._function(**given)
            if inspect.isawaitable(values):
                values = self._wait(values)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - reported, not swallowed
            return {"raised": _sentence(error)}
        return _as_reply(values)

    def _wait(self, values: Awaitable[Any]) -> Any:
        async def result() -> Any:
            return await values

        self._loop = self._loop or asyncio.Runner()
        return self._loop.run(result())


def _as_reply(values: Any) -> Reply:
    if isinstance(values, str | bytes | Mapping):
        return {"returned": f"a {type(values).__name__}"}
    try:
        return {"values": [None if value is None else float(value) for value in values]}
    except (TypeError, ValueError):
        shown = "None" if values is None else f"a {type(values).__name__}"
        return {
            "returned": f"{shown} with other things than numbers" if hasattr(values, "__len__") else shown
        }


def values_in(reply: Reply, name: str, num_responses: int) -> list[float | None]:
    """One value per response; a UserError names the function and what it did instead."""
    problem = None
    if "raised" in reply:
        problem = f"raised {reply['raised']}"
    elif "asks" in reply:
        problem = f"asks for {reply['asks']!r}, but the data has {', '.join(reply['columns'])}"
    elif "returned" in reply:
        problem = f"returned {reply['returned']}, expected a list with a number or None for each response"
    elif len(reply["values"]) != num_responses:
        problem = f"returned {len(reply['values'])} values for {num_responses} responses"
    if problem is not None:
        raise UserError(f"the reward function {name} {problem}")
    return reply["values"]


def _sentence(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{said} ({os.path.basename(last.filename)}, line {last.lineno})"
