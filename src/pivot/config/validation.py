"""Checks of a configuration beyond the types of its fields; each problem is one sentence.

The parts of a method check their own values.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import fields

from pivot.config.schema import all_fields
from pivot.config.sections import Config
from pivot.data.template import read_template
from pivot.errors import UserError
from pivot.models.corruption import find as find_corruption
from pivot.plugins import FORMS
from pivot.rewards.judge import BUILT_IN
from pivot.rewards.verifier import answer_finder
from pivot.tiny.procedural import TASKS

PROCEDURAL = "tiny"
"""The data set whose prompts are generated."""

AT_LEAST = {
    "model.lora_rank": 0,
    "model.min_pixels": 1,
    "model.max_pixels": 1,
    "data.size": 1,
    "data.validation_size": 1,
    "reward.overlong_cache": 0,
    "reward.workers": 1,
    "rollout.responses": 2,
    "rollout.top_k": 0,
    "rollout.max_tokens": 1,
    "rollout.max_prompt_tokens": 1,
    "rollout.max_tries": 1,
    "rollout.batch_tokens": 1,
    "sampling.importance_cap": 1,
    "buffer.max_prompts": 1,
    "corruption.sigma": 0,
    "train.steps": 1,
    "train.epochs": 1,
    "train.max_responses": 1,
    "train.prompts_per_step": 1,
    "train.minibatch_prompts": 1,
    "train.lr_warmup_steps": 0,
    "train.weight_decay": 0,
    "train.seed": 0,
    "train.micro_batch_tokens": 1,
    "train.kept_activations": 0,
    "train.max_bad_updates": 1,
    "train.threads": 1,
    "eval.every": 0,
    "eval.samples": 1,
    "eval.final_prompts": 0,
    "eval.final_samples": 1,
    "checkpoint.every": 1,
    "checkpoint.keep_last": 1,
    "log.rollouts_per_step": 0,
    "log.rollouts_every": 1,
}
ABOVE_ZERO = (
    "reward.timeout",
    "rollout.temperature",
    "rollout.logprob_temperature",
    "rollout.top_p",
    "sampling.memory_share",
    "train.lr",
    "train.grad_clip",
    "checkpoint.minutes",
    "checkpoint.stop_seconds",
)
AT_MOST_ONE = ("corruption.probability", "rollout.top_p")
BELOW_ONE = ("data.holdout", "train.adam_beta1", "train.adam_beta2", "sampling.memory_share")
NOT_NEGATIVE = ("corruption.probability", *BELOW_ONE)


def validate(config: Config) -> None:
    """Raise a UserError with the first problem, if there is one."""
    for sentence in problems(config):
        raise UserError(sentence)


def problems(config: Config) -> Iterator[str]:
    """All problems, one sentence each."""
    yield from _ranges(config)
    yield from _batches(config)
    yield from _model(config)
    yield from _corruption(config)
    yield from _data(config)
    yield from _prompt(config)
    yield from _reward(config)
    yield from _method(config)
    yield from _sampling(config)


def _ranges(config: Config) -> Iterator[str]:
    values = {info.path: info.value for info in all_fields(config)}
    given = {path: value for path, value in values.items() if value is not None}
    for path, low in AT_LEAST.items():
        if path in given and given[path] < low:
            reason = " (a group's advantage compares its responses)" if path == "rollout.responses" else ""
            yield f"{path} is {given[path]}, but must be at least {low}{reason}."
    for paths, is_right, words in (
        (ABOVE_ZERO, lambda value: value > 0, "above 0"),
        (NOT_NEGATIVE, lambda value: value >= 0, "at least 0"),
        (AT_MOST_ONE, lambda value: value <= 1, "at most 1"),
        (BELOW_ONE, lambda value: value < 1, "below 1"),
    ):
        for path in paths:
            if path in given and not is_right(given[path]):
                yield f"{path} is {given[path]}, but must be {words}."


def _batches(config: Config) -> Iterator[str]:
    train = config.train
    if train.minibatch_prompts > train.prompts_per_step:
        yield (
            f"train.minibatch_prompts is {train.minibatch_prompts}, but must be at most train.prompts_per_step "
            f"({train.prompts_per_step})."
        )
    round_size, budget = train.prompts_per_step * config.rollout.responses, train.max_responses
    if budget is not None and budget < round_size:
        yield (
            f"train.max_responses is {budget}, but the first step alone samples {train.prompts_per_step} prompts x "
            f"{config.rollout.responses} responses = {round_size}; raise it, or lower train.prompts_per_step."
        )
    if config.eval.final_prompts != 0 and not config.eval.sets:
        yield "eval.sets is empty, so there is no before/after table; name a split, or set eval.final_prompts=0."


def _model(config: Config) -> Iterator[str]:
    model = config.model
    if re.fullmatch(r"auto|cpu|cuda(:\d+)?", model.device) is None:
        yield f"model.device is {model.device!r}, but must be auto, cpu, cuda or cuda:N."
    if model.attention != "sdpa" and config.train.layout == "tree":
        yield f"train.layout=tree needs model.attention=sdpa; with {model.attention} use train.layout=repeated or auto."
    if model.attention == "flash_attention_2" and model.dtype == "float32":
        yield "model.attention=flash_attention_2 needs model.dtype=bfloat16."
    if model.quantize is not None and not model.lora_rank:
        yield "model.quantize freezes the weights that it quantizes; set model.lora_rank, e.g. to 64."
    if config.train.kept_activations and not model.gradient_checkpointing:
        yield "train.kept_activations has no effect without model.gradient_checkpointing=true, which keeps none."
    if model.min_pixels is not None and model.max_pixels is not None and model.min_pixels > model.max_pixels:
        yield f"model.min_pixels is {model.min_pixels}, but must be at most model.max_pixels ({model.max_pixels})."


def _corruption(config: Config) -> Iterator[str]:
    try:
        find_corruption(config.corruption.kind)
    except UserError as unknown:
        yield str(unknown)
    if config.method.hides_image:
        for section, chosen in (("corruption", config.corruption), ("method", config.method.corruption)):
            for f in fields(chosen):
                if getattr(chosen, f.name) != f.default:
                    yield (
                        f"{section}.{f.name} has no effect with method {config.method.name}, which hides the "
                        "whole image; leave it out."
                    )


def _data(config: Config) -> Iterator[str]:
    data = config.data
    if data.tasks and PROCEDURAL not in data.sets:
        yield f"data.tasks applies to data.train={PROCEDURAL} only, but data.train is {data.title}."
    yield from _sets(config)
    for task in data.tasks:
        if task not in TASKS:
            near = difflib.get_close_matches(task, TASKS, n=1, cutoff=0.0)[0]
            yield f"data.tasks names {task!r}, which is not a task; the nearest is {near}."


def _prompt(config: Config) -> Iterator[str]:
    try:
        if config.prompt.template is not None:
            read_template(config.prompt.template)
        answer_finder(config.prompt.answer)
    except UserError as problem:
        yield str(problem)


def _reward(config: Config) -> Iterator[str]:
    reward = config.reward
    for name in reward.functions:
        source, _, function = name.rpartition(":")
        if name not in BUILT_IN and not (source and function):
            yield (
                f"reward.functions names {name!r}, which is neither {' nor '.join(BUILT_IN)}; write one of these, "
                f"{FORMS}."
            )
    if reward.weights and len(reward.weights) != len(reward.functions):
        yield (
            f"reward.weights has {len(reward.weights)} numbers and reward.functions {len(reward.functions)} names; "
            "give one weight per function."
        )
    if reward.overlong_cache > config.rollout.max_tokens:
        yield (
            f"reward.overlong_cache is {reward.overlong_cache}, but must be at most rollout.max_tokens "
            f"({config.rollout.max_tokens})."
        )


def _sets(config: Config) -> Iterator[str]:
    data = config.data
    if not all(name.strip() for name in data.sets) or not data.sets:
        yield "data.train is empty; name a set, a hub id or a file."
    if twice := sorted({name for name in data.sets if data.sets.count(name) > 1}):
        yield f"data.train names {twice[0]} twice; name each set once and use data.weights for its share."
    if data.weights and len(data.weights) != len(data.sets):
        yield f"data.weights has {len(data.weights)} values for {len(data.sets)} sets of data.train."
    if any(weight <= 0 for weight in data.weights):
        yield f"data.weights is {list(data.weights)}, but every weight must be above 0."
    if data.path is not None and len(data.sets) > 1:
        yield "data.path is for one set; with several, write their paths into data.train."
    if data.path is not None and data.train == PROCEDURAL:
        yield f"data.path has no use for data.train={PROCEDURAL}, which is generated; write the file into data.train."


def _method(config: Config) -> Iterator[str]:
    method, data = config.method, config.data
    if method.has_experts and data.experts is None and data.train != PROCEDURAL:
        yield (
            f"Method {method.name} learns from expert demonstrations; set data.experts to "
            'a file of JSON lines {"id", "response"}.'
        )
    if method.trains_on_experience and config.buffer.store_logprobs is False:
        yield "method.anchor_use=off_policy needs the recorded log-probs; leave buffer.store_logprobs unset."


def _sampling(config: Config) -> Iterator[str]:
    rollout = config.rollout
    if config.sampling.importance_cap is not None and rollout.logprob_temperature not in (
        None,
        1,
        rollout.temperature,
    ):
        yield (
            "sampling.importance_cap compares vLLM's log-probs with the trainer's; leave rollout.logprob_temperature "
            "unset, or set it to 1."
        )
