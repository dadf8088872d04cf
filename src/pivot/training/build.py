"""From a configuration to a trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pivot.config import Config
from pivot.data import MEMORY
from pivot.engines.base import Engine
from pivot.errors import UserError
from pivot.experience import ExperienceBuffer, ReplayGate
from pivot.method import Replay
from pivot.rewards.in_process import CallableJudge
from pivot.rewards.judge import FunctionJudge, Judge, VerifierJudge
from pivot.sampling import Sampling
from pivot.training.anchors import AnchorSelector
from pivot.training.clock import PhaseClock
from pivot.training.prompts import expert_demonstrations
from pivot.training.selection import FreshStream, Sources
from pivot.training.trainer import StepPlan, Trainer
from pivot.types import Prompt


def build_judge(config: Config, function: Callable[..., Any] | None = None) -> Judge:
    """Who rewards responses: `function` of this process, `reward.function`, or the verifier."""
    reward = config.reward
    if function is not None:
        return CallableJudge(function, reward.timeout, reward.grader)
    if reward.function is not None and reward.function.startswith(f"{MEMORY}:"):
        name = reward.function.partition(":")[2]
        raise UserError(
            f"this run is rewarded by the Python function {name}, which its folder does not hold: continue it from "
            "Python with pivot.resume(RUN, reward=FUNCTION)"
        )
    if reward.function is not None:
        return FunctionJudge(reward.function, reward.timeout, reward.grader)
    return VerifierJudge(reward.grader, reward.workers)


def build_trainer(
    config: Config, engine: Engine, prompts: Mapping[str, Prompt], judge: Judge, clock: PhaseClock
) -> Trainer:
    """All parts of a training step."""
    method, seed = config.method, config.train.seed
    replay = method.replay or Replay()
    buffer = ExperienceBuffer(
        responses_per_prompt=replay.responses_per_prompt or config.rollout.responses,
        max_prompts=config.buffer.max_prompts,
        seed=seed,
    )
    experts = expert_demonstrations(config, prompts, engine.encoder)
    return Trainer(
        method=method,
        plan=plan_of(config),
        engine=engine,
        sources=Sources(prompts, FreshStream(list(prompts), seed), buffer),
        gate=ReplayGate(replay.solved_threshold, round(replay.warmup_share * config.train.steps)),
        judge=judge,
        anchor_selector=AnchorSelector(method, engine, buffer, experts),
        clock=clock,
    )


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
        oversample=rollout.oversample,
        recompute_logprobs=rollout.recompute_logprobs,
        store_logprobs=config.method.trains_on_experience if stored is None else stored,
    )


def learning_rate(config: Config, step: int) -> float:
    """Constant after a linear warm-up; a function of the step, so that resuming needs no schedule state."""
    warmup = config.train.lr_warmup_steps
    return config.train.lr * (min(1.0, step / warmup) if warmup else 1.0)


def evaluation_sampling(config: Config) -> Sampling:
    """Temperature 1.0, top_p 1.0, no top_k: the paper's evaluation."""
    return Sampling(max_tokens=config.rollout.max_tokens)
