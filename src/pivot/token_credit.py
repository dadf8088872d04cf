"""Which tokens of a model's responses matter, by every method's measure: one question with its image, no run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pivot.errors import UserError
from pivot.evaluation.matching import BenchmarkJudge
from pivot.evaluation.target import Conditions, GivenOptions, Target, choose_conditions, leased_target
from pivot.models.encoding import EncodedPrompt
from pivot.models.policy import Policy
from pivot.runs.rollout_records import data_uri
from pivot.sampling import Sampling, sample_responses
from pivot.token_measures import (
    MEASURES,
    METHODS,
    CreditedResponse,
    Measure,
    View,
    choose_methods,
    measure_responses,
)
from pivot.token_scores import ImageLike, config_of, load, make_prompt
from pivot.training.prompts import tokenize_response
from pivot.types import Prompt, Response


@dataclass(frozen=True)
class CreditMap:
    """The token values of all responses to one question. `write` makes a page of it."""

    model: str
    question: str
    answer: str
    measures: tuple[Measure, ...]
    responses: tuple[CreditedResponse, ...]
    images: Sequence[str] = ()
    views: Sequence[View] = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    def write(self, path: str | Path) -> Path:
        """A self-contained HTML page."""
        from pivot.report.credit import write_credit

        return write_credit(self, Path(path))


@dataclass(frozen=True)
class CreditRequest:
    """What to measure; the command's options.

    Example:
        CreditRequest(samples=4, methods=("pivot", "vppo"))
    """

    responses: tuple[str, ...] = ()
    """Texts to score besides the samples."""
    samples: int = 4
    methods: tuple[str, ...] = METHODS
    temperature: float = 1.0
    seed: int = 0
    """Of the samples and of the corruption."""
    options: GivenOptions = field(default_factory=GivenOptions)


def measure_prompt(target: Target, prompt: Prompt, request: CreditRequest) -> CreditMap:
    """Sample responses to a prompt, add the given ones, grade them if the answer is known, and measure their tokens."""
    methods = choose_methods(request.methods)
    if not prompt.images:
        raise UserError("the question has no image, so no token can depend on one; give an image")
    config = config_of(target)
    config = replace(config, train=replace(config.train, seed=request.seed))
    (conditions,) = choose_conditions([target], request.options)
    policy = load(target, config, conditions)
    encoded = policy.encoder.encode(conditions.prompt.value.style.apply(prompt))
    responses = _responses(policy, encoded, conditions, request)
    if prompt.answer:
        with BenchmarkJudge(conditions.grader.value, prompt=conditions.prompt.value) as judge:
            rewards = judge.judge([prompt] * len(responses), [y.text for y in responses])
        for response, reward in zip(responses, rewards, strict=True):
            response.reward = reward
    measured, views = measure_responses(policy, config, encoded, responses, methods)
    first_given = len(measured) - len(request.responses)
    return CreditMap(
        model=target.name,
        question=prompt.question,
        answer=prompt.answer,
        measures=tuple(measure for measure in MEASURES if measure.method in methods),
        responses=tuple(replace(y, given=number >= first_given) for number, y in enumerate(measured)),
        images=[data_uri(policy.family.picture(image)) for image in encoded.images],
        views=views,
        facts={
            "Prompt": prompt.id,
            "Settings": conditions.describe(graded=bool(prompt.answer)),
            "Sampling": f"temperature {request.temperature:g}, seed {request.seed}",
        },
    )


def credit(
    model: str | Path,
    *,
    image: ImageLike | Sequence[ImageLike],
    question: str,
    response: str | Sequence[str] = (),
    samples: int | None = None,
    answer: str = "",
    methods: Sequence[str] = (),
    temperature: float = 1.0,
    seed: int = 0,
) -> CreditMap:
    """Which tokens of a model's responses matter, by every method's own measure, as training computes it.

    Args:
        model: as in `evaluate`.
        image: one image or several: a PIL image, bytes, or a path.
        question: the question; `<image>` marks where an image is, otherwise the images come first.
        response: texts to score as responses.
        samples: responses to sample: 4 by default, none if a response is given.
        answer: the right answer, to grade the responses.
        methods: whose measures: pivot, vppo, papo, pepo, pgpo, entropy; all by default.
        temperature: of the samples.
        seed: of the samples and of the corruption.

    Returns:
        `measures` and `responses`, each with `tokens` and `values` by measure; `write(path)` makes the page.

    Example:
        pivot.credit("tiny", image="figure.png", question="Find x.").write("credit.html")
    """
    texts = (response,) if isinstance(response, str) else tuple(response)
    if samples is None:
        samples = 0 if texts else 4
    request = CreditRequest(texts, samples, tuple(methods), temperature, seed)
    prompt = replace(make_prompt(image, question), answer=answer)
    with leased_target(str(model)) as target:
        return measure_prompt(target, prompt, request)


def _responses(
    policy: Policy, prompt: EncodedPrompt, conditions: Conditions, request: CreditRequest
) -> list[Response]:
    """The samples, then the given ones."""
    found: list[Response] = []
    if request.samples:
        sampling = Sampling(temperature=request.temperature, max_tokens=conditions.max_tokens.value)
        drawn = sample_responses(policy, [prompt], request.samples, sampling, key=(request.seed, "credit"))
        found += dict(drawn)[0]
    for text in request.responses:
        if not text.strip():
            raise UserError("the response to score is empty; give its text")
        found.append(Response(tokenize_response(text, policy.encoder), text, None, None, truncated=False))
    if not found:
        raise UserError("there is no response to measure; ask for samples or give one")
    return found
