"""Every method's own measure of how much a token matters, by the functions that a training step calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from pivot.config import Config
from pivot.engines.base import ScoreRequest
from pivot.engines.scoring import Scorer
from pivot.engines.settings import corruption_of, packing_of
from pivot.errors import UserError, nearest
from pivot.method import (
    PRESETS,
    Batch,
    Method,
    Perception,
    PerceptionExploration,
    PerceptionGrounding,
    TokenSelection,
    top_token_mask,
)
from pivot.models.corruption import Corruption, Corruptor
from pivot.models.encoding import EncodedPrompt
from pivot.models.policy import Policy, ResponseStatistics
from pivot.models.rows import PromptWithResponses
from pivot.runs.rollout_records import data_uri
from pivot.token_scores import allocation_of
from pivot.types import Response, Reward


@dataclass(frozen=True)
class Measure:
    """What one method calls the importance of a token."""

    key: str
    symbol: str
    name: str
    method: str
    about: str
    neutral: float = 0.0
    """The value that says nothing either way."""


MEASURES = (
    Measure(
        "support", "c", "visual support", "pivot", "1 − q/p of the token under the corrupted image (Eq. 10)"
    ),
    Measure("future", "F", "future support", "pivot", "discounted c of the tokens that follow (Eq. 11)"),
    Measure("gate", "u", "entropy gate", "pivot", "how open the choice is: 1 − exp(−H / mean H) (Eq. 12)"),
    Measure("utility", "U", "utility", "pivot", "what moves the advantage: c + λ detrended u F (Eq. 13)"),
    Measure(
        "vppo",
        "k3",
        "VPPO dependency",
        "vppo",
        "k3 divergence from the corrupted image; underlined: in its loss",
    ),
    Measure(
        "papo",
        "k3",
        "PAPO perception",
        "papo",
        "k3 divergence from the corrupted image, which PAPO maximises",
    ),
    Measure(
        "pepo", "w", "PEPO weight", "pepo", "likeness to the image's hidden states, gated by entropy", 1.0
    ),
    Measure("pgpo", "w", "PGPO weight", "pgpo", "gated divergence from the hidden image; the mean is 1", 1.0),
    Measure(
        "entropy", "H", "entropy", "entropy", "of the distribution that the token was drawn from, in nats"
    ),
)
METHODS = tuple(dict.fromkeys(measure.method for measure in MEASURES))
CAPTIONS = {"patch": "{share:.0%} of its patches black", "grey": "all grey", "gaussian": "with noise"}


@dataclass(frozen=True)
class CreditedResponse:
    """A response and the values of its tokens by measure."""

    tokens: tuple[str, ...]
    values: Mapping[str, Sequence[float]]
    logprobs: Sequence[float]
    kept: Sequence[bool] = ()
    """Tokens in VPPO's policy loss; empty if it was not asked for."""
    reward: Reward | None = None
    """None if the right answer is not known."""
    truncated: bool = False
    given: bool = False
    """Not sampled, but given."""


@dataclass(frozen=True)
class View:
    """The prompt's images as some methods' corrupted pass saw them."""

    methods: tuple[str, ...]
    caption: str
    images: Sequence[str]
    """Data URIs; none if the image is hidden from attention."""


def choose_methods(names: Sequence[str]) -> tuple[str, ...]:
    """The methods of these names in their usual order, all without names; a UserError names the nearest."""
    for name in names:
        if name not in METHODS:
            raise UserError(f"there is no measure of tokens by {name!r}; {nearest(name, METHODS)}")
    return tuple(name for name in METHODS if not names or name in names)


def measure_responses(
    policy: Policy,
    config: Config,
    prompt: EncodedPrompt,
    responses: Sequence[Response],
    methods: Sequence[str] = METHODS,
    step: int = 0,
) -> tuple[list[CreditedResponse], list[View]]:
    """The tokens of responses to one prompt by the measures of these methods, each under its own corruption."""
    chosen = choose_methods(methods)
    passes = _Passes(policy, config, PromptWithResponses(prompt, [y.token_ids_T for y in responses]), step)
    clean = passes.clean("pepo" in chosen)
    columns: dict[str, Tensor] = {}
    kept_BT = None
    for name in chosen:
        method = _method(name, config)
        batch = _batch(clean, passes.corrupted(name, method) if method.needs_corrupted else None)
        columns |= _columns(name, method, batch)
        if name == "vppo":
            share = cast(TokenSelection, method.visual).token_keep_share
            kept_BT = top_token_mask(columns["vppo"], batch.mask_BT, share=share)
    found = []
    for row, response in enumerate(responses):
        length = len(response)
        found.append(
            CreditedResponse(
                tokens=tuple(str(policy.tokenizer.decode([i])) for i in response.token_ids_T.tolist()),
                values={key: values_BT[row, :length].tolist() for key, values_BT in columns.items()},
                logprobs=clean.logprobs_BT[row, :length].tolist(),
                kept=[] if kept_BT is None else kept_BT[row, :length].tolist(),
                reward=response.reward,
                truncated=response.truncated,
            )
        )
    return found, passes.views()


def _method(name: str, config: Config) -> Method:
    """The run's own method where it is of that kind, else the preset; entropy is everybody's."""
    preset = PRESETS.get(name, PRESETS["dapo"])
    if name == "pivot":
        return replace(preset, visual=allocation_of(config.method), corruption=config.method.corruption)
    own = type(config.method.visual) is type(preset.visual) and name == config.method.name
    return config.method if own else preset


def _columns(name: str, method: Method, batch: Batch) -> dict[str, Tensor]:
    """Key -> [B, T], by the same functions as in training."""
    visual = method.visual
    if name == "pivot":
        assert visual is not None
        _, _, parts = visual(batch, torch.zeros(len(batch.mask_BT)))
        pivot = {"support": parts.support_BT, "future": parts.future_BT, "gate": parts.gate_BT}
        return cast("dict[str, Tensor]", pivot | {"utility": parts.utility_BT})
    if isinstance(visual, TokenSelection):
        return {name: visual.dependency(batch)}
    if isinstance(visual, PerceptionExploration | PerceptionGrounding):
        return {name: visual.weights(batch)}
    for term in method.terms:
        if isinstance(term, Perception):
            return {name: term.divergence(batch)}
    return {name: batch.entropy_BT}


def _batch(clean: ResponseStatistics, corrupted: ResponseStatistics | None) -> Batch:
    zeros_B = torch.zeros(len(clean.mask_BT))
    return Batch(
        mask_BT=clean.mask_BT,
        rewards_B=zeros_B,
        format_B=zeros_B,
        group_size=len(zeros_B),
        clean_logprobs_BT=clean.logprobs_BT,
        entropy_BT=clean.entropy_BT,
        old_logprobs_BT=clean.logprobs_BT,
        new_logprobs_BT=clean.logprobs_BT,
        corrupted_logprobs_BT=None if corrupted is None else corrupted.logprobs_BT,
        similarity_BT=clean.similarity_BT,
    )


class _Passes:
    """The forward passes over the responses: one with the image, one for every corruption that a method has."""

    def __init__(self, policy: Policy, config: Config, unit: PromptWithResponses, step: int) -> None:
        self._policy, self._config, self._unit, self._step = policy, config, unit, step
        self._found: dict[Corruption, ResponseStatistics] = {}
        self._methods: dict[Corruption, list[str]] = {}

    def clean(self, with_similarity: bool) -> ResponseStatistics:
        request = ScoreRequest([self._unit], self._step, "clean", with_similarity=with_similarity)
        return self._score(Corruption(), request)

    def corrupted(self, name: str, method: Method) -> ResponseStatistics:
        corruption = corruption_of(replace(self._config, method=method))
        if corruption not in self._found:
            request = ScoreRequest([self._unit], self._step, "corrupted")
            self._found[corruption] = self._score(corruption, request)
        self._methods.setdefault(corruption, []).append(name)
        return self._found[corruption]

    def views(self) -> list[View]:
        """What each corrupted pass saw."""
        found = []
        for corruption, methods in self._methods.items():
            images = self._corruptor(corruption).corrupt(self._unit.prompt, self._step).images
            pictures = [data_uri(self._policy.family.picture(image)) for image in images]
            found.append(View(tuple(methods), _caption(corruption), pictures))
        return found

    def _score(self, corruption: Corruption, request: ScoreRequest) -> ResponseStatistics:
        packing = packing_of(self._config, self._policy.family)
        self._policy.forget_features()  # those of another image or corruption
        found = Scorer(self._policy, self._corruptor(corruption), packing).score(request)
        self._policy.forget_features()
        return found

    def _corruptor(self, corruption: Corruption) -> Corruptor:
        return Corruptor(self._policy.encoder, corruption, self._config.train.seed)


def _caption(corruption: Corruption) -> str:
    if corruption.hidden:
        return "hidden from attention"
    what = CAPTIONS.get(corruption.kind, corruption.kind).format(share=corruption.probability)
    return what + (", before resizing" if corruption.raw else "")
