"""From a run's configuration to what every engine needs."""

from __future__ import annotations

import dataclasses
from typing import Literal

from pivot.config import Config
from pivot.engines.packing import Packing
from pivot.errors import UserError
from pivot.models.corruption import Corruption
from pivot.models.family import Family
from pivot.models.loading import ModelOptions


def model_options(config: Config) -> ModelOptions:
    return ModelOptions(**{f.name: getattr(config.model, f.name) for f in dataclasses.fields(ModelOptions)})


def logprob_temperature(config: Config) -> float:
    """Temperature of the distribution whose log-probs and entropies enter the loss."""
    chosen = config.rollout.logprob_temperature
    return config.rollout.temperature if chosen is None else chosen


def sampler_logprobs(config: Config) -> Literal["raw_logprobs", "processed_logprobs"] | None:
    """Which of vLLM's log-probs have the temperature of the trainer's; None: neither."""
    temperature = logprob_temperature(config)
    if temperature == 1:
        return "raw_logprobs"
    return "processed_logprobs" if temperature == config.rollout.temperature else None


def packing_of(config: Config, family: Family) -> Packing:
    """Trees where the model can share prefixes; otherwise one row per response."""
    train = config.train
    fitting = family.layout(config.model.attention)
    if train.layout == "tree" and fitting != "tree":
        raise UserError(
            "train.layout=tree is not possible with this model; use train.layout=repeated or auto"
        )
    layout = fitting if train.layout == "auto" else train.layout
    return Packing(layout, train.micro_batch_tokens, train.halve_on_oom)


def corruption_of(config: Config) -> Corruption:
    """The image corruption of a run; the method decides what the `corruption` section leaves open."""
    chosen, own = config.corruption, config.method.corruption
    raw = own.corrupt_raw_image if chosen.raw is None else chosen.raw
    probability = own.corrupt_probability if chosen.probability is None else chosen.probability
    return Corruption(chosen.kind, probability, chosen.sigma, raw, config.method.hides_image)
