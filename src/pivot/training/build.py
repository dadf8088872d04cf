"""From a configuration to a trainer: every part built once, in the order in which they need each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from pivot.config import Config
from pivot.experience import ExperienceBuffer, ReplayGate
from pivot.method import Replay
from pivot.models.corruption import Corruption, Corruptor
from pivot.models.loading import ModelOptions, load_policy
from pivot.models.policy import Policy
from pivot.rewards.judge import FunctionJudge, Judge, VerifierJudge
from pivot.sampling import Sampling
from pivot.training.anchors import AnchorSelector
from pivot.training.clock import PhaseClock
from pivot.training.optimizer import MasterAdamW
from pivot.training.packing import Packing
from pivot.training.plan import StepPlan
from pivot.training.prompts import expert_demonstrations
from pivot.training.scoring import Scorer
from pivot.training.selection import Sources
from pivot.training.stream import FreshStream
from pivot.training.trainer import Trainer
from pivot.training.update import Updater
from pivot.types import Prompt

SMALL_MODEL = 5_000_000
"""Below this many weights one thread is faster than two."""


def load_model(config: Config, path: str | None = None) -> Policy:
    """The policy of a run; the seed also fixes the start of low-rank adapters."""
    torch.manual_seed(config.train.seed)
    policy = load_policy(path or config.model.path, model_options(config))
    policy.temperature = logprob_temperature(config)
    if config.train.threads is not None:
        torch.set_num_threads(config.train.threads)
    elif policy.num_parameters < SMALL_MODEL:
        torch.set_num_threads(1)
    return policy


def model_options(config: Config) -> ModelOptions:
    return ModelOptions(**{f.name: getattr(config.model, f.name) for f in dataclasses.fields(ModelOptions)})


def build_judge(config: Config) -> Judge:
    reward = config.reward
    if reward.function is not None:
        return FunctionJudge(reward.function, reward.timeout, reward.grader)
    return VerifierJudge(reward.grader, reward.workers)


def build_trainer(
    config: Config, policy: Policy, prompts: Mapping[str, Prompt], judge: Judge, clock: PhaseClock
) -> Trainer:
    """All parts of a training step."""
    method, seed = config.method, config.train.seed
    packing = packing_of(config)
    corruptor = Corruptor(policy.encoder, corruption_of(config), seed)
    scorer = Scorer(policy, corruptor, packing)
    buffer = build_buffer(config)
    return Trainer(
        policy=policy,
        reference=_reference(config) if method.needs_reference else None,
        method=method,
        plan=plan_of(config),
        sources=Sources(prompts, FreshStream(list(prompts), seed), buffer),
        gate=build_gate(config),
        judge=judge,
        scorer=scorer,
        anchor_selector=AnchorSelector(
            method, scorer, buffer, expert_demonstrations(config, prompts, policy)
        ),
        updater=Updater(policy, method, build_optimizer(config, policy), packing, config.train.grad_clip),
        clock=clock,
    )


def build_buffer(config: Config) -> ExperienceBuffer:
    replay = config.method.replay or Replay()
    return ExperienceBuffer(
        responses_per_prompt=replay.responses_per_prompt or config.rollout.responses,
        max_prompts=config.buffer.max_prompts,
        seed=config.train.seed,
    )


def build_gate(config: Config) -> ReplayGate:
    replay = config.method.replay or Replay()
    return ReplayGate(replay.solved_threshold, round(replay.warmup_share * config.train.steps))


def build_optimizer(config: Config, policy: Policy) -> MasterAdamW:
    train = config.train
    return MasterAdamW(
        policy.trainable_parameters().values(),
        lr=train.lr,
        betas=(train.adam_beta1, train.adam_beta2),
        weight_decay=train.weight_decay,
        fused=True,
    )


def learning_rate(config: Config, step: int) -> float:
    """Constant after a linear warm-up; a function of the step, so that resuming needs no schedule state."""
    warmup = config.train.lr_warmup_steps
    return config.train.lr * (min(1.0, step / warmup) if warmup else 1.0)


def training_sampling(config: Config) -> Sampling:
    rollout = config.rollout
    return Sampling(rollout.temperature, rollout.top_p, rollout.top_k, rollout.max_tokens)


def logprob_temperature(config: Config) -> float:
    """Of the distribution whose log-probs and entropies enter the loss."""
    chosen = config.rollout.logprob_temperature
    return config.rollout.temperature if chosen is None else chosen


def evaluation_sampling(config: Config) -> Sampling:
    """Temperature 1.0, top_p 1.0, no top_k: the paper's evaluation."""
    return Sampling(max_tokens=config.rollout.max_tokens)


def plan_of(config: Config) -> StepPlan:
    stored = config.buffer.store_logprobs
    return StepPlan(
        prompts=config.train.prompts_per_step,
        minibatch_prompts=config.train.minibatch_prompts,
        responses=config.rollout.responses,
        max_tries=config.rollout.max_tries,
        oversample=config.rollout.oversample,
        sampling=training_sampling(config),
        seed=config.train.seed,
        batch_tokens=config.rollout.batch_tokens,
        halve_on_oom=config.train.halve_on_oom,
        recompute_logprobs=config.rollout.recompute_logprobs,
        store_logprobs=config.method.trains_on_experience if stored is None else stored,
        overlap=config.train.overlap,
    )


def packing_of(config: Config) -> Packing:
    """Trees where the attention can share prefixes; the other kernels get plain rows."""
    train = config.train
    fitting = "tree" if config.model.attention == "sdpa" else "repeated"
    layout = fitting if train.layout == "auto" else train.layout
    return Packing(layout, train.micro_batch_tokens, train.halve_on_oom)


def corruption_of(config: Config) -> Corruption:
    """The intervention of a run; what `corruption` leaves open is the method's."""
    chosen, own = config.corruption, config.method.corruption
    raw = own.corrupt_raw_image if chosen.raw is None else chosen.raw
    probability = own.corrupt_probability if chosen.probability is None else chosen.probability
    return Corruption(chosen.kind, probability, chosen.sigma, raw)


def _reference(config: Config) -> Policy:
    """The model that training started from, frozen; loaded again on resume, so it needs no checkpoint."""
    reference = load_model(config)
    reference.model.requires_grad_(False)
    reference.model.eval()
    return reference
