"""Rewards: the built-in verifier, or a function of the user's own."""

from __future__ import annotations

import importlib
import math
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from pivot.errors import UserError
from pivot.tasks.verifier import Verifier
from pivot.types import Prompt, Reward


class Judge(Protocol):
    """Says of each response how good it is."""

    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[Reward]:
        """One reward a response; `prompts[i]` is what `responses[i]` answers."""
        ...

    def close(self) -> None: ...


class VerifierJudge:
    """Exact match against the ground truth."""

    def __init__(self, grader: str, workers: int) -> None:
        self._verifier = Verifier(grader=grader, workers=workers)

    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[Reward]:
        return self._verifier.grade_many(responses, [p.answer for p in prompts])

    def close(self) -> None:
        self._verifier.close()


class FunctionJudge:
    """`module:function` with TRL's calling convention: `f(completions=..., **columns) -> list[float]`.

    The function also receives `prompts` (the questions), `answer` and every further column of the data as lists. Its
    value is the accuracy reward; a response counts as correct above 0.5. The format is the verifier's.
    """

    def __init__(self, spec: str, timeout: float) -> None:
        self._spec, self._timeout = spec, timeout
        self._function = _find(spec)
        self._verifier = Verifier()

    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[Reward]:
        values = self._call(prompts, responses)
        known = self._verifier.grade_many(responses, [p.answer for p in prompts])
        return [
            Reward(value, seen.format, "correct" if value > 0.5 else "wrong", seen.extracted)
            for value, seen in zip(values, known, strict=True)
        ]

    def close(self) -> None:
        self._verifier.close()

    def _call(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
        names = sorted({name for prompt in prompts for name in prompt.columns})
        columns: dict[str, list[Any]] = {name: [p.columns.get(name) for p in prompts] for name in names}
        columns["answer"] = [p.answer for p in prompts]
        columns["prompts"] = [p.question for p in prompts]
        columns["completions"] = list(responses)
        return self._check(
            _bounded(lambda: self._function(**columns), self._timeout, self._spec), len(responses)
        )

    def _check(self, values: Any, expected: int) -> list[float]:
        try:
            floats = [float(v) for v in values]
        except (TypeError, ValueError) as cause:
            raise UserError(
                f"the reward function {self._spec} returned {type(values).__name__}, expected a list of numbers"
            ) from cause
        if len(floats) != expected:
            raise UserError(
                f"the reward function {self._spec} returned {len(floats)} values for {expected} responses"
            )
        bad = [i for i, v in enumerate(floats) if not math.isfinite(v)]
        if bad:
            raise UserError(
                f"the reward function {self._spec} returned {floats[bad[0]]} for response {bad[0]}; "
                "expected finite numbers"
            )
        return floats


def _find(spec: str) -> Callable[..., Any]:
    module_name, _, name = spec.partition(":")
    if not name:
        raise UserError(f"reward.function is {spec!r}; expected module:function")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ImportError as cause:
        raise UserError(
            f"reward.function: cannot import {module_name!r} ({cause}); is it on the PYTHONPATH?"
        ) from cause
    function = vars(module).get(name)
    if not callable(function):
        raise UserError(f"reward.function: {module_name!r} has no function {name!r}")
    return function


def _bounded(call: Callable[[], Any], timeout: float, spec: str) -> Any:
    """The call's value; a call that raises or does not come back in time ends the run with its name."""
    outcome: dict[str, Any] = {}

    def run() -> None:
        try:
            outcome["value"] = call()
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises is named, not swallowed
            outcome["error"] = error

    thread = threading.Thread(target=run, daemon=True, name=f"reward {spec}")
    thread.start()
    thread.join(timeout)
    if thread.is_alive():
        raise UserError(
            f"the reward function {spec} did not return within {timeout:g} s; raise reward.timeout if it needs longer"
        )
    if "error" in outcome:
        error = outcome["error"]
        raise UserError(f"the reward function {spec} raised {type(error).__name__}: {error}") from error
    return outcome["value"]
