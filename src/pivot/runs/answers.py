"""Which boxed answers are rewarded: metrics of a step, and an alarm when one answer is right for many truths.

A policy that finds a hole in the reward gives the same answer to many prompts. `answer_metrics` writes what is needed
to see that into the step's row; `AnswerWatch` reads the rows, so a resumed run reports what an uninterrupted one would.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pivot.rewards.verifier import Reason, check_answer
from pivot.types import RolloutGroup

PATHS = ("fast", "structured", "library")
TOP = 5
"""Rewarded answers that a row lists."""
MOST_PAIRS = 20
"""Pairs of answer and truth with different text that a row lists."""
MOST_CHARS = 80
"""Of an answer or a truth in a row."""
MANY_TRUTHS = 3
"""An answer that is right for so many different truths is suspicious. A box may say two things: `50%` is 50 and 1/2."""
_LABEL = re.compile(r"\s*\(?([A-Z])\)?\s*(?:[.):]|$)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def answer_metrics(groups: Sequence[RolloutGroup]) -> dict[str, Any]:
    """The `answers/` keys of a step, from all rewarded responses; docs/metrics.md explains them."""
    paths: Counter[str] = Counter()
    prompts: dict[str, set[str]] = defaultdict(set)
    truths: dict[str, set[str]] = defaultdict(set)
    rewarded: Counter[str] = Counter()
    pairs: Counter[tuple[str, str, str]] = Counter()
    solved: set[str] = set()
    for group in groups:
        truth = _short(group.prompt.answer)
        for reward in (response.reward for response in group.responses):
            if reward is None or not reward.correct:
                continue
            paths[reward.path] += 1
            solved.add(group.prompt.id)
            if reward.extracted is None:
                continue
            answer = _short(reward.extracted)
            rewarded[answer] += 1
            prompts[answer].add(group.prompt.id)
            truths[answer].add(truth)
            if _plain(answer) != _plain(truth):
                pairs[answer, truth, reward.path] += 1
    if not paths:
        return {}
    row: dict[str, Any] = {f"answers/path_{name}": paths[name] for name in PATHS} if any(paths) else {}
    if not rewarded:
        return row
    order = sorted(rewarded, key=lambda answer: (-len(prompts[answer]), -rewarded[answer], answer))
    listed = sorted(pairs, key=lambda pair: (-len(truths[pair[0]]), -pairs[pair], pair))
    return row | {
        "answers/top_share": len(prompts[order[0]]) / len(solved),
        "answers/differing_share": pairs.total() / rewarded.total(),
        "answers/top": [[a, len(prompts[a]), rewarded[a], len(truths[a])] for a in order[:TOP]],
        "answers/differing": [[*pair, pairs[pair]] for pair in listed[:MOST_PAIRS]],
    }


class AnswerWatch:
    """Notices an answer that is accepted for many truths which are different, now and in earlier steps."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._truths: dict[str, list[str]] = {}
        """Answer -> truths it was accepted for, each different from all others."""
        self._next: dict[str, int] = {}
        """Answer -> the number of truths at which it is reported again."""
        for row in rows:
            self.add(row)

    @property
    def suspicious(self) -> dict[str, list[str]]:
        """Answer -> the different truths it was accepted for, if they are many."""
        return {answer: truths for answer, truths in self._truths.items() if len(truths) >= MANY_TRUTHS}

    def add(self, row: Mapping[str, Any]) -> str | None:
        """Remember a step; a sentence when an answer becomes suspicious, and each time its truths have doubled."""
        reached = []
        for answer, truth, *_ in row.get("answers/differing", ()):
            known = self._truths.setdefault(answer, [])
            if not all(are_different(truth, other) for other in known):
                continue
            known.append(truth)
            if len(known) >= self._next.get(answer, MANY_TRUTHS):
                reached.append(answer)
                self._next[answer] = 2 * len(known)
        if not reached:
            return None
        answer = max(reached, key=lambda answer: len(self._truths[answer]))
        truths = self._truths[answer]
        more = f" ({len(reached) - 1} more such answers)" if len(reached) > 1 else ""
        return (
            f"the answer {answer!r} has been rewarded for {len(truths)} different truths, such as "
            f"{', '.join(map(repr, truths[-MANY_TRUTHS:]))}{more}: the reward may have a hole that the policy learns "
            "to use; see `answers/` in docs/metrics.md"
        )


def are_different(truth: str, other: str) -> bool:
    """Whether no answer should be right for both truths.

    The verifier finds them unequal, and they differ in more than a unit, a name (`x = 3`, `y = 3`) or the text behind
    an option's letter: `5` is right for `5 cm` and `5 m`, and `B` for `B. 48` and `B. 52`.
    """
    if check_answer(truth, other) in (Reason.CORRECT, None):
        return False
    labels = [_LABEL.match(text) for text in (truth, other)]
    if labels[0] and labels[1] and labels[0].group(1) == labels[1].group(1):
        return False
    numbers = [_NUMBER.findall(text) for text in (truth, other)]
    return not numbers[0] or numbers[0] != numbers[1]


def _plain(text: str) -> str:
    return re.sub(r"[\s$]", "", text)


def _short(text: str) -> str:
    return text if len(text) <= MOST_CHARS else text[: MOST_CHARS - 1] + "…"
