"""How much each token of a response depends on the image: c, F, u, U, V and H, as a training step computes them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from PIL import Image

from pivot.config import Config, overlay
from pivot.config.methods import find_method
from pivot.data.images import BytesImage, FileImage, ReadableImage
from pivot.data.memory import png_bytes
from pivot.data.template import IMAGE_MARK
from pivot.engines.base import ScoreRequest
from pivot.engines.scoring import Scorer, response_means
from pivot.engines.settings import corruption_of, logprob_temperature, packing_of
from pivot.errors import UserError
from pivot.evaluation.target import Conditions, GivenOptions, Target, choose_conditions, find_target
from pivot.method import PRESETS, Batch, Method, VisualAllocation
from pivot.models.corruption import CORRUPTIONS, Corruptor
from pivot.models.loading import ModelOptions, load_policy
from pivot.models.policy import Policy, ResponseStatistics
from pivot.models.rows import PromptWithResponses
from pivot.training.prompts import tokenize_response
from pivot.types import Prompt

ImageLike = Image.Image | bytes | str | Path


@dataclass(frozen=True)
class TokenScore:
    """One token of a response."""

    text: str
    logprob: float
    """log p of the token under the clean image."""
    entropy: float
    """H_t over the whole vocabulary."""
    support: float
    """c (Eq. 10), with the method's floor."""
    future_support: float
    """F (Eq. 11)."""
    gate: float
    """u (Eq. 12); its mean entropy is that of this response, in training that of the whole step."""
    utility: float
    """U (Eq. 13)."""


@dataclass(frozen=True)
class ScoredResponse:
    """A response under the clean and the corrupted image. Printing it shows a table of its tokens."""

    tokens: tuple[TokenScore, ...]
    V: float
    """Dependency on the image: the mean KL divergence between both images' distributions (Eq. 4)."""
    H: float
    """Mean entropy (Eq. 5)."""

    def __str__(self) -> str:
        head = f"{'token':<16}{'log-prob':>10}{'entropy':>10}{'c':>10}{'F':>10}{'u':>10}{'U':>10}"
        lines = [
            f"{t.text!r:<16}"
            + "".join(
                f"{v:>10.4f}" for v in (t.logprob, t.entropy, t.support, t.future_support, t.gate, t.utility)
            )
            for t in self.tokens
        ]
        return "\n".join([head, *lines, f"V = {self.V:.4f}, H = {self.H:.4f}"])


def score(
    model: str | Path | Policy,
    *,
    image: ImageLike | Sequence[ImageLike] | None,
    question: str,
    response: str,
    method: str | None = None,
    step: int = 0,
) -> ScoredResponse:
    """How much each token of a response depends on the image, as training computes it.

    Args:
        model: as in `evaluate`, or a loaded `Policy` (`pivot.models.loading.load_policy`) to score many responses.
        image: one image or several: a PIL image, bytes, or a path; None for a question without one.
        question: the question; `<image>` marks where an image is, otherwise the images come first.
        response: the response's text.
        method: whose settings of Eq. 10-13 and whose corruption to use; by default the run's, else PIVOT's.
        step: selects the corruption mask.

    Returns:
        `tokens`, each with text, logprob, entropy, support, future_support, gate and utility; `V` (Eq. 4), `H` (Eq. 5).
    """
    for name, text in (("question", question), ("response", response)):
        if not isinstance(text, str):
            raise UserError(f"{name} is a {type(text).__name__}, but must be a text")
    prompt = make_prompt(image, question)
    if not response:
        raise UserError("response is empty; give the text whose tokens are to be scored")
    if isinstance(model, Policy):
        policy, config = model, Config()
    else:
        target = find_target(str(model))
        config = config_of(target)
        (conditions,) = choose_conditions([target], GivenOptions())
        policy = load(target, config, conditions)
    if method is not None:
        config = replace(config, method=find_method(method))
    prompt = config.prompt.style.apply(prompt)
    return score_tokens(policy, config, prompt, tokenize_response(response, policy.encoder), step)


def score_tokens(
    policy: Policy, config: Config, prompt: Prompt, token_ids_T: torch.Tensor, step: int
) -> ScoredResponse:
    """A response's tokens at a step of a run with this configuration."""
    corruptor = Corruptor(policy.encoder, corruption_of(config), config.train.seed)
    scorer = Scorer(policy, corruptor, packing_of(config, policy.family))
    unit = PromptWithResponses(policy.encoder.encode(prompt), [token_ids_T])
    policy.forget_features()  # those of another step or image
    found = scorer.score(ScoreRequest([unit], step, "both"))
    policy.forget_features()
    columns = _columns(found, config.method, bool(prompt.images))
    texts = [str(policy.tokenizer.decode([i])) for i in token_ids_T.tolist()]
    assert found.divergence_BT is not None
    return ScoredResponse(
        tuple(
            TokenScore(text, *values) for text, values in zip(texts, zip(*columns, strict=True), strict=True)
        ),
        V=float(response_means(found.divergence_BT, found.mask_BT)),
        H=float(response_means(found.entropy_BT, found.mask_BT)),
    )


def _columns(found: ResponseStatistics, method: Method, has_image: bool) -> list[list[float]]:
    """log p, H, c, F, u, U of the one response, by the method's visual part."""
    corrupted_BT = found.corrupted_logprobs_BT if has_image else found.logprobs_BT
    batch = Batch(
        mask_BT=found.mask_BT,
        rewards_B=torch.zeros(1),
        format_B=torch.zeros(1),
        group_size=1,
        clean_logprobs_BT=found.logprobs_BT,
        entropy_BT=found.entropy_BT,
        old_logprobs_BT=found.logprobs_BT,
        corrupted_logprobs_BT=corrupted_BT,
    )
    _, _, parts = allocation_of(method)(batch, torch.zeros(1))
    assert parts.support_BT is not None
    assert parts.future_BT is not None
    assert parts.gate_BT is not None
    assert parts.utility_BT is not None
    values = (batch.clean_logprobs_BT, batch.entropy_BT, parts.support_BT, parts.future_BT, parts.gate_BT)
    return [value_BT[0].tolist() for value_BT in (*values, parts.utility_BT)]


def allocation_of(method: Method) -> VisualAllocation:
    """The method's own token-level allocation, or PIVOT's if it has none with future support."""
    for chosen in (method.visual, PRESETS["pivot"].visual):
        if isinstance(chosen, VisualAllocation) and chosen.utility == "future":
            return chosen
    raise AssertionError("PIVOT has one")


def config_of(target: Target) -> Config:
    """The run's configuration, with its method unless that is code of another package; the defaults without a run."""
    if target.config is None or target.run is None:
        return Config()
    config = target.config
    if config.corruption.kind not in CORRUPTIONS:
        raise UserError(
            f"{target.name} corrupts images with code of its own ({config.corruption.kind}), which a score does not "
            "import: register it first (pivot.models.corruption.register)"
        )
    stored = json.loads((target.run / "config.json").read_bytes()).get("method", {})
    return config if "source" in stored else overlay(config, {"method": stored})


def load(target: Target, config: Config, conditions: Conditions) -> Policy:
    """The model, with log-probs at the temperature of the configuration."""
    low, high = conditions.limits.value
    options = ModelOptions(dtype=conditions.dtype.value, min_pixels=low, max_pixels=high)
    policy = load_policy(str(target.folder), options)
    policy.temperature = logprob_temperature(config)
    return policy


def make_prompt(image: ImageLike | Sequence[ImageLike] | None, question: str) -> Prompt:
    """The question with its images; its id, which selects the corruption mask, follows from the content."""
    given = [] if image is None else list(image) if isinstance(image, list | tuple) else [image]
    sources = [_source(one) for one in given]
    num_marks = question.count(IMAGE_MARK)
    if num_marks not in (0, len(sources)):
        raise UserError(f"question has {num_marks} {IMAGE_MARK} marks for {len(sources)} images")
    digest = hashlib.blake2b(question.encode(), digest_size=8)
    for source in sources:
        digest.update(source.read())
    return Prompt(f"score/{digest.hexdigest()}", question, "", tuple(sources))


def _source(image: object) -> ReadableImage:
    if isinstance(image, Image.Image):
        return BytesImage(png_bytes(image))
    if isinstance(image, bytes):
        return BytesImage(image)
    if not isinstance(image, str | Path):
        raise UserError(f"image is a {type(image).__name__}, but must be a PIL image, bytes or a path")
    path = Path(image).expanduser()
    if not path.is_file():
        raise UserError(f"there is no image file {path}")
    return FileImage(path)
