"""Who computes rewards: the built-in verifier, or a reward function of the user."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

from pivot.errors import UserError
from pivot.rewards.process import RewardProcess
from pivot.rewards.verifier import Verifier
from pivot.types import Prompt, Reward


class Judge(Protocol):
    """Computes the rewards of responses."""

    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[Reward]:
        """One reward per response; `responses[i]` answers `prompts[i]`."""
        ...

    def close(self) -> None: ...


class VerifierJudge:
    """Exact match against the ground truth, by the verifier."""

    def __init__(self, grader: str, workers: int) -> None:
        self._verifier = Verifier(grader=grader, workers=workers)

    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[Reward]:
        return self._verifier.grade_many(responses, [p.answer for p in prompts])

    def close(self) -> None:
        self._verifier.close()


class FunctionJudge:
    """`module:function` with TRL's calling convention: `f(completions=..., **columns) -> list[float]`.

    The function also receives `prompts` (the questions), `answer` and all other columns of the data as lists. Its
    value is the accuracy reward; a response is correct if it exceeds 0.5. The format reward is the grader's. The
    function runs in a process of its own. Values that are not finite are passed on: the trainer skips such updates.
    """

    def __init__(self, spec: str, timeout: float, grader: str = "pivot") -> None:
        if not all(spec.partition(":")):
            raise UserError(f"reward.function is {spec!r}; expected module:function")
        self._verifier = Verifier(grader)
        self.process = RewardProcess(spec, timeout)

    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[Reward]:
        values = self._call(prompts, responses)
        rewards: list[Reward] = []
        for value, response in zip(values, responses, strict=True):
            form, extracted = self._verifier.look(response)
            rewards.append(Reward(value, form, _reason(value), extracted))
        return rewards

    def close(self) -> None:
        self.process.close()
        self._verifier.close()

    def _call(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
        names = sorted({name for prompt in prompts for name in prompt.columns})
        columns: dict[str, list[Any]] = {name: [p.columns.get(name) for p in prompts] for name in names}
        columns["answer"] = [p.answer for p in prompts]
        columns["prompts"] = [p.question for p in prompts]
        columns["completions"] = list(responses)
        values = self.process.call(columns)
        if len(values) != len(responses):
            raise UserError(
                f"the reward function {self.process.spec} returned {len(values)} values for {len(responses)} responses"
            )
        return values


def _reason(value: float) -> str:
    if not math.isfinite(value):
        return "not finite"
    return "correct" if value > 0.5 else "wrong"
