"""A reward function that is a Python object of this process, such as one defined in a notebook."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pivot.errors import UserError
from pivot.rewards.judge import FunctionJudge
from pivot.rewards.verifier import Verifier


def function_name(function: Callable[..., Any]) -> str:
    """For messages and config.json."""
    return getattr(function, "__name__", type(function).__name__)


class InProcessFunction:
    """Calls a function in a thread of this process, with `RewardProcess`'s interface and time limit.

    A thread cannot be killed: one that exceeds its time is left behind, and the run ends.
    """

    def __init__(self, function: Callable[..., Any], timeout: float) -> None:
        self.spec = function_name(function)
        self.timeout = timeout
        self._function = function

    def call(self, columns: dict[str, Any]) -> list[float]:
        """The values the function returns."""
        outcome: list[Any] = []

        def work() -> None:
            try:
                outcome.append(self._function(**columns))
            except Exception as error:  # noqa: BLE001 - handed to the calling thread
                outcome.append(
                    UserError(f"the reward function {self.spec} raised {type(error).__name__}: {error}")
                )

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(self.timeout)
        if not outcome:
            raise UserError(f"the reward function {self.spec} did not return within {self.timeout:g} s")
        if isinstance(outcome[0], UserError):
            raise outcome[0]
        try:
            return [float(value) for value in outcome[0]]
        except (TypeError, ValueError) as wrong:
            kind = type(outcome[0]).__name__
            raise UserError(
                f"the reward function {self.spec} returned {kind}, expected a list of numbers"
            ) from wrong

    def close(self) -> None: ...


class CallableJudge(FunctionJudge):
    """`FunctionJudge` for a function of this process."""

    def __init__(self, function: Callable[..., Any], timeout: float, grader: str = "pivot") -> None:
        self._verifier = Verifier(grader)
        self.process = InProcessFunction(function, timeout)
