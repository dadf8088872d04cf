"""The raw numbers of one model: graded samples by prompt, and visual support, attention and V(y) of its responses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from experiments.tiny_world.kinds import KINDS, ORIGINS, origin, token_kinds
from experiments.tiny_world.plan import Measure, World
from pivot.config import Config
from pivot.engines.base import ScoreRequest
from pivot.engines.packing import Packing
from pivot.engines.scoring import Scorer, response_means
from pivot.evaluation import attention
from pivot.evaluation.sampling import GradedPrompt, evaluation_request, graded_samples
from pivot.method import visual_support
from pivot.models.corruption import Corruption, Corruptor
from pivot.models.policy import Policy
from pivot.models.rows import PromptWithResponses
from pivot.rewards.judge import Judge, VerifierJudge
from pivot.sampling import NativeSampler
from pivot.tiny import procedural
from pivot.training.build import build_judge, evaluation_sampling
from pivot.types import Prompt

LOOK_SAMPLES = 4
"""Responses per prompt that are scored token by token."""
SUPPORT_FLOOR = -5.0
"""c below it counts as this, as in training."""


@dataclass(frozen=True)
class Measured:
    """A model's numbers as they are stored, and the graded samples they come from."""

    sets: dict[str, Any]
    looks: dict[str, Any]
    graded: dict[str, list[GradedPrompt]]


def measure_model(policy: Policy, config: Config, world: World, settings: Measure) -> Measured:
    """Accuracy@k on test, out of domain, validation and blank test images; V, attention and c on test prompts."""
    judge = VerifierJudge(config.reward.grader, config.reward.workers)
    splits = {"test": world.test, "ood": "ood", "validation": config.data.validation_split}
    prompts = {
        name: list(procedural.dataset(split, settings.prompts, tasks=config.data.tasks or None))
        for name, split in splits.items()
    }
    sampler = GradedSampler(policy, config, judge)
    # Right and wrong by the training reward, which a world may have of its own.
    own = judge if not config.reward.functions else build_judge(config)
    try:
        graded = {name: sampler.sample(chosen, settings.samples) for name, chosen in prompts.items()}
        graded["blank"] = sampler.sample(prompts["test"], settings.samples, blank=True)
        looks = look(GradedSampler(policy, config, own), prompts["test"][: settings.looked_at])
    finally:
        judge.close()
        own.close()
    return Measured({name: summarise(found) for name, found in graded.items()}, looks, graded)


@dataclass(frozen=True)
class GradedSampler:
    """Draws graded responses as the runs of a configuration are evaluated."""

    policy: Policy
    config: Config
    judge: Judge

    def sample(
        self, prompts: Sequence[Prompt], num_samples: int, *, blank: bool = False
    ) -> list[GradedPrompt]:
        """In the order of the prompts, whatever order they finish in."""
        request = evaluation_request(
            num_samples, evaluation_sampling(self.config), self.config.train.seed, blank
        )
        found = {
            g.prompt.id: g for g in graded_samples(NativeSampler(self.policy), prompts, self.judge, request)
        }
        return [found[prompt.id] for prompt in prompts]


def summarise(graded: Sequence[GradedPrompt]) -> dict[str, Any]:
    """Correct samples of each prompt, in the order of the set; the prompts' tasks take turns.

    Example:
        {"samples": 8, "tasks": ["angle", "count", ...], "correct": [3, 8, 0, ...], "format": 0.99, "length": 41.2}
    """
    responses = [r for g in graded for r in g.responses]
    return {
        "samples": len(graded[0].responses),
        "tasks": list(dict.fromkeys(g.prompt.task for g in graded)),
        "correct": [sum(bool(r.reward and r.reward.correct) for r in g.responses) for g in graded],
        "format": round(float(np.mean([r.reward.format for r in responses if r.reward])), 4),
        "length": round(float(np.mean([len(r) for r in responses])), 2),
    }


@torch.no_grad()
def look(sampler: GradedSampler, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """V(y) and attention to the image by prompt, c by kind of token, and the origin of right and wrong answers."""
    policy, config = sampler.policy, sampler.config
    graded = sampler.sample(prompts, LOOK_SAMPLES)
    policy.forget_features()
    units = [
        PromptWithResponses(policy.encoder.encode(g.prompt), [r.token_ids_T for r in g.responses])
        for g in graded
    ]
    # The same intervention for every cell, whatever it was trained with.
    scorer = Scorer(policy, Corruptor(policy.encoder, Corruption(), seed=0), Packing())
    found = scorer.score(ScoreRequest(units, 0, "both"))
    policy.forget_features()
    assert found.corrupted_logprobs_BT is not None
    assert found.divergence_BT is not None
    dependency_B = response_means(found.divergence_BT, found.mask_BT)
    support_BT = visual_support(
        found.logprobs_BT, found.corrupted_logprobs_BT, found.mask_BT, floor=SUPPORT_FLOOR
    )
    watched = attention.measure(policy, prompts, "", sampling=evaluation_sampling(config))
    policy.forget_features()
    return {
        "dependency": _rounded(dependency_B.view(len(prompts), -1).mean(1)),
        "attention": _rounded(watched.mass_PN.mean(axis=1)),
        "attention_layers": _rounded(watched.mean_N),
        "kinds": _support_by_kind(policy, graded, support_BT, found.logprobs_BT),
        "origins": _origins(graded),
    }


def _support_by_kind(
    policy: Policy, graded: Sequence[GradedPrompt], support_BT: torch.Tensor, logprobs_BT: torch.Tensor
) -> dict[str, dict[str, list[float]]]:
    """right/wrong response -> kind -> [tokens, mean c, sum of 1 - p]; the last is how strongly a kind is trained."""
    totals = {verdict: {kind: [0, 0.0, 0.0] for kind in KINDS} for verdict in ("right", "wrong")}
    row = 0
    for item in graded:
        percepts = item.prompt.columns["percepts"]
        for response in item.responses:
            pieces = [str(policy.tokenizer.decode([i])) for i in response.token_ids_T.tolist()]
            verdict = "right" if response.reward and response.reward.correct else "wrong"
            for t, kind in enumerate(token_kinds(pieces, percepts)):
                entry = totals[verdict][kind]
                entry[0] += 1
                entry[1] += float(support_BT[row, t])
                entry[2] += 1.0 - float(logprobs_BT[row, t].exp())
            row += 1
    return {
        verdict: {k: [n, round(c / n, 4), round(w, 3)] for k, (n, c, w) in kinds.items() if n}
        for verdict, kinds in totals.items()
    }


def _origins(graded: Sequence[GradedPrompt]) -> dict[str, list[int]]:
    """Where responses come from -> [right ones, wrong ones]."""
    counts: Counter[tuple[str, bool]] = Counter()
    for item in graded:
        for response in item.responses:
            correct = bool(response.reward and response.reward.correct)
            counts[origin(response.text, item.prompt.columns["percepts"]), correct] += 1
    return {name: [counts[name, True], counts[name, False]] for name in ORIGINS}


def _rounded(values: Any) -> list[float]:
    return [round(float(value), 5) for value in values]
