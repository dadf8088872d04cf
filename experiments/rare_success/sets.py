"""Training sets of five success rates under a start checkpoint, and new prompts chosen alike for validation.

Training prompts come from the procedural split `train`, new ones from `validation`; the sets that models are measured
on at the end (`test`, `ood`) are neither chosen from nor looked at. A seed fixes everything.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from experiments.prompt_files import digest_of, write_set
from experiments.rare_success.choice import ROUNDS, Counted, choose, expected_rates, informative_share
from pivot.durable import write_bytes
from pivot.errors import UserError
from pivot.evaluation.sampling import evaluation_request, graded_samples
from pivot.models.loading import load_policy
from pivot.models.policy import Policy
from pivot.rewards.judge import VerifierJudge
from pivot.sampling import NativeSampler, Sampling
from pivot.seeding import stable_seed
from pivot.tiny import procedural
from pivot.types import Prompt

SPLITS = {"": "train", "-new": "validation"}
"""Ending of a set's name -> the procedural split that its prompts are chosen from."""
SECOND = 16
"""Responses to each chosen prompt in the second sampling, which describes a set."""
CHUNK = 1000
"""Prompts whose counts are written at once: an interrupted sampling continues there."""

Count = Callable[[Sequence[Prompt], int, str], list[int]]
"""How many of so many responses to each prompt are right; samplings with different names are independent."""


@dataclass(frozen=True)
class SetPlan:
    """How the sets are made.

    Example:
        SetPlan(start="tiny-hard", candidates={40: 2000, 2: 16000}, prompts=120)
    """

    start: str = "tiny-hard"
    candidates: dict[int, int] = field(
        default_factory=lambda: {40: 2000, 20: 2000, 10: 2400, 5: 8000, 2: 16000}
    )
    """Mean success rate in per cent -> prompts of the split `train` to choose among; for new prompts as many each."""
    prompts: int = 120
    """Of each training set."""
    new_prompts: int = 60
    """Of each validation set."""
    max_tokens: int = 96
    seed: int = 0

    def name(self, rate: int, ending: str = "") -> str:
        """`tiny-hard-05-new`."""
        return f"{self.start}-{rate:02d}{ending}"


def make_sets(
    plan: SetPlan, folder: Path, count: Count, recorded: Mapping[str, dict[str, Any]] | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Write each set as `FOLDER/NAME.jsonl` with its images; yields its name and what is recorded about it.

    Sets that are recorded are written from the ids of their prompts: another processor rounds differently, so that
    sampling there would choose other prompts.
    """
    for rate, candidates in plan.candidates.items():
        for ending, split in SPLITS.items():
            size = plan.prompts if split == "train" else plan.new_prompts
            prompts = procedural.dataset(split, candidates * size // plan.prompts)
            known = (recorded or {}).get(plan.name(rate, ending))
            if known is not None:
                yield plan.name(rate, ending), write_recorded(plan.name(rate, ending), known, prompts, folder)
                continue
            first = Counts(folder / f"{plan.start}-{split}-counts.jsonl", count)
            counts = first.screened(prompts)
            generator = np.random.Generator(np.random.PCG64(stable_seed(plan.seed, rate, split)))
            members = [prompts[i] for i in choose(expected_rates(counts), rate / 100, size, generator)]
            # Chosen by one sampling, described by another: the luck that got a prompt into a set does not count.
            second = Counts(folder / f"{plan.start}-{split}-second.jsonl", count).sampled(members)
            name = plan.name(rate, ending)
            digest = write_set(members, folder / f"{name}.jsonl")
            ids = [prompt.id for prompt in members]
            yield name, {"digest": digest, "split": split, **describe(members, second), "ids": ids}


def write_recorded(
    name: str, known: dict[str, Any], candidates: Sequence[Prompt], folder: Path
) -> dict[str, Any]:
    """Write a set from the ids of its prompts; returns what was recorded of it."""
    by_id = {prompt.id: prompt for prompt in candidates}
    digest = write_set([by_id[one] for one in known["ids"]], folder / f"{name}.jsonl")
    if digest != known["digest"]:
        raise UserError(
            f"{name} has other images or questions here ({digest}) than when it was recorded ({known['digest']}): "
            "the tiny world has changed since."
        )
    return known


@dataclass
class Counts:
    """Right responses per prompt, kept in a file so that nothing is sampled twice."""

    path: Path
    count: Count
    known: dict[str, list[int]] = field(default_factory=dict)
    """Prompt id -> right responses of each round."""

    def __post_init__(self) -> None:
        if self.path.exists():
            rows = map(json.loads, self.path.read_text().splitlines())
            self.known = {row["id"]: row["correct"] for row in rows}

    def screened(self, prompts: Sequence[Prompt]) -> list[Counted]:
        """Rounds of ROUNDS for each prompt, as long as it is rarely solved."""
        for number, size in enumerate(ROUNDS):
            due = [p for p in prompts if len(self.known.get(p.id, ())) == number]
            due = [p for p in due if number == 0 or self._total(p).is_rare]
            self._sample(due, size, f"round {number}")
        return [self._total(prompt) for prompt in prompts]

    def sampled(self, prompts: Sequence[Prompt]) -> list[int]:
        """One round of SECOND responses for each prompt."""
        self._sample([p for p in prompts if p.id not in self.known], SECOND, "second")
        return [self.known[prompt.id][0] for prompt in prompts]

    def _total(self, prompt: Prompt) -> Counted:
        found = self.known[prompt.id]
        return Counted(sum(found), sum(ROUNDS[: len(found)]))

    def _sample(self, prompts: Sequence[Prompt], size: int, sampling: str) -> None:
        for begin in range(0, len(prompts), CHUNK):
            chunk = prompts[begin : begin + CHUNK]
            for prompt, correct in zip(chunk, self.count(chunk, size, sampling), strict=True):
                self.known.setdefault(prompt.id, []).append(correct)
            lines = [json.dumps({"id": name, "correct": correct}) for name, correct in self.known.items()]
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(self.path, ("\n".join(lines) + "\n").encode())


def sampler_of(plan: SetPlan) -> Count:
    """Counts with the start checkpoint and the verifier, which are loaded when they are first needed."""

    @cache
    def parts() -> tuple[Policy, VerifierJudge]:
        return load_policy(plan.start), VerifierJudge("pivot", 1)

    def count(prompts: Sequence[Prompt], size: int, sampling: str) -> list[int]:
        policy, judge = parts()
        seed = stable_seed("rare success", plan.seed, sampling)
        request = evaluation_request(size, Sampling(max_tokens=plan.max_tokens), seed)
        found = {
            graded.prompt.id: sum(response.correct for response in graded.responses)
            for graded in graded_samples(NativeSampler(policy), prompts, judge, request)
        }
        policy.forget_features()
        return [found[prompt.id] for prompt in prompts]

    return count


def describe(prompts: Sequence[Prompt], second: Sequence[int]) -> dict[str, Any]:
    """What a reader should know of a set, by the second sampling."""
    return {
        "prompts": len(prompts),
        "success_rate": round(sum(second) / SECOND / len(second), 4),
        "informative_of_8": round(informative_share(second, SECOND, 8), 4),
        "informative_of_4": round(informative_share(second, SECOND, 4), 4),
        "tasks": dict(sorted(Counter(prompt.task for prompt in prompts).items())),
        "levels": dict(sorted(Counter(str(prompt.columns["level"]) for prompt in prompts).items())),
        f"solved_of_{SECOND}": [list(second).count(k) for k in range(SECOND + 1)],
    }


def check_sets(folder: Path, recorded: dict[str, Any]) -> None:
    """Raise a UserError unless the sets in a folder are those that were recorded."""
    for name, known in recorded.items():
        path = folder / f"{name}.jsonl"
        if not path.exists():
            raise UserError(f"{path} is missing: make it by `python -m experiments.rare_success sets`.")
        if digest_of(path) != known["digest"]:
            raise UserError(
                f"{path} is not the set that was recorded ({known['digest']}): remove it and make it again."
            )
