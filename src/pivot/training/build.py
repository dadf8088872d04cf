"""From a configuration to a trainer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pivot.config import Config
from pivot.engines.base import Engine
from pivot.errors import UserError
from pivot.experience import ExperienceBuffer, GroupStore, ReplayGate
from pivot.method import Method, Replay
from pivot.rewards.judge import MEMORY, Judge, RewardRules, RewardSource, open_judge
from pivot.sampling import Sampling
from pivot.training.anchors import AnchorSelector
from pivot.training.clock import PhaseClock
from pivot.training.mixture import fresh_stream
from pivot.training.prompts import expert_demonstrations
from pivot.training.selection import Sources
from pivot.training.step import StepPlan
from pivot.training.trainer import Trainer
from pivot.types import Prompt


def build_judge(
    config: Config, reward: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None
) -> Judge:
    """Who rewards responses: the verifier, or the functions of `reward.functions` and of the calling process.

    Functions of the calling process take the places of `memory:NAME` in `reward.functions`; others come last.
    """
    given = [] if reward is None else [reward] if callable(reward) else list(reward)
    sources: list[RewardSource] = []
    for name in config.reward.functions:
        if name.startswith(MEMORY) and not given:
            raise UserError(
                f"this run is rewarded by the Python function {name.removeprefix(MEMORY)}, which its folder does not "
                "hold: continue it from Python and pass the function again"
            )
        sources.append(given.pop(0) if name.startswith(MEMORY) else name)
    settings, asked = config.reward, config.prompt
    rules = RewardRules(
        functions=(*sources, *given),
        weights=settings.weights,
        threshold=settings.threshold,
        timeout=settings.timeout,
        grader=settings.grader,
        workers=settings.workers,
        answer=asked.answer,
        think=asked.style.asks_to_think,
    )
    return open_judge(rules)


def describe_reward(config: Config) -> str:
    """What is rewarded, in one line, for the beginning of a run."""
    reward, coef = config.reward, config.method.advantage.format_coef
    weights = reward.weights or (1.0,) * len(reward.functions)
    terms = [f"{weight:g} x {name}" for weight, name in zip(weights, reward.functions, strict=True)]
    parts = [" + ".join(terms) or f"exact match ({reward.grader})"]
    if terms:
        parts.append(f"correct above {reward.threshold:g}")
    is_on = f"format advantage {coef:g} x format" if reward.has_format and coef else "no format advantage"
    parts.append(
        is_on + (" (reward.format=true adds it)" if not reward.has_format and reward.format is None else "")
    )
    if reward.overlong_cache:
        parts.append(f"penalty over the last {reward.overlong_cache} of {config.rollout.max_tokens} tokens")
    if reward.mask_truncated:
        parts.append("truncated responses are left out of the loss")
    return "; ".join(parts)


def build_trainer(
    config: Config,
    engine: Engine,
    prompts: Mapping[str, Prompt],
    judge: Judge,
    clock: PhaseClock,
    sets: Mapping[str, Sequence[str]] | None = None,
) -> Trainer:
    """All parts of a training step; `sets` are the ids of each training set if there are several."""
    method, seed = config.method, config.train.seed
    if not config.reward.has_format:
        method = method.with_settings(format_coef=0.0)
    replay = method.replay or Replay()
    buffer = ExperienceBuffer(
        responses_per_prompt=replay.responses_per_prompt or config.rollout.responses,
        max_prompts=config.buffer.max_prompts,
        bucket_sigma=replay.bucket_sigma,
        uniform=replay.replay_choice == "uniform",
        seed=seed,
    )
    experts = expert_demonstrations(config, prompts, engine.encoder)
    return Trainer(
        method=method,
        plan=plan_of(config),
        engine=engine,
        sources=_sources(config, prompts, buffer, sets or {"": list(prompts)}),
        store=_store(method, seed),
        gate=ReplayGate(replay.solved_threshold, round(replay.warmup_share * planned_steps(config))),
        judge=judge,
        anchor_selector=AnchorSelector(method, engine, buffer, experts),
        clock=clock,
    )


def _store(method: Method, seed: int) -> GroupStore | None:
    stored = method.stored
    if stored is None:
        return None
    return GroupStore(stored.stored_groups, by_score=stored.flat_groups == "by_score", seed=seed)


def _sources(
    config: Config, prompts: Mapping[str, Prompt], buffer: ExperienceBuffer, sets: Mapping[str, Sequence[str]]
) -> Sources:
    stream = fresh_stream(list(sets.values()), config.data.weights, config.train.seed)
    set_of = {prompt_id: name for name, ids in sets.items() for prompt_id in ids} if len(sets) > 1 else {}
    return Sources(prompts, stream, buffer, set_of=set_of)


def plan_of(config: Config) -> StepPlan:
    rollout, stored = config.rollout, config.buffer.store_logprobs
    return StepPlan(
        prompts=config.train.prompts_per_step,
        minibatch_prompts=config.train.minibatch_prompts,
        responses=rollout.responses,
        max_tries=rollout.max_tries,
        sampling=Sampling(rollout.temperature, rollout.top_p, rollout.top_k, rollout.max_tokens),
        seed=config.train.seed,
        learning_rate=partial(learning_rate, config),
        steps=planned_steps(config),
        oversample=rollout.oversample,
        recompute_logprobs=rollout.recompute_logprobs,
        store_logprobs=config.method.trains_on_experience if stored is None else stored,
        overlong_cache=config.reward.overlong_cache,
        mask_truncated=config.reward.mask_truncated,
        importance_cap=config.sampling.importance_cap,
        max_responses=config.train.max_responses,
    )


def planned_steps(config: Config) -> int:
    """The steps of a run, or fewer where one round of sampling per step already uses up its budget of responses."""
    train = config.train
    if train.max_responses is None:
        return train.steps
    return min(
        train.steps, math.ceil(train.max_responses / (train.prompts_per_step * config.rollout.responses))
    )


def learning_rate(config: Config, step: int) -> float:
    """Constant after a linear warm-up; a function of the step, so that resuming needs no schedule state."""
    warmup = config.train.lr_warmup_steps
    return config.train.lr * (min(1.0, step / warmup) if warmup else 1.0)


def evaluation_sampling(config: Config) -> Sampling:
    """Temperature 1.0, top_p 1.0, no top_k: the paper's evaluation."""
    return Sampling(max_tokens=config.rollout.max_tokens)
