"""PIVOT: visually grounded reinforcement learning with verifiable rewards for vision-language models.

Example:
    import pivot

    result = pivot.train("tiny", settings={"train.steps": 20})
    pivot.evaluate(result.folder, benchmarks="tiny-test", samples=4)
    pivot.score(result.folder, image=image, question="How many?", response="\\boxed{3}").tokens[0].support

Everything heavy is imported on first use. docs/api.md describes these functions.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pivot import recipes
    from pivot.config import Config
    from pivot.engines.base import OpenEngine
    from pivot.method import Method
    from pivot.models.family import Family
    from pivot.models.policy import Policy
    from pivot.runs.callbacks import Callback
    from pivot.runs.run import RunResult
    from pivot.runs.trackers import OpenTracker
    from pivot.token_credit import CreditMap
    from pivot.token_scores import ImageLike, ScoredResponse

__version__ = "0.1.0"
__all__ = [
    "Callback",
    "Config",
    "__version__",
    "credit",
    "evaluate",
    "recipes",
    "register_engine",
    "register_family",
    "register_method",
    "register_tracker",
    "resume",
    "score",
    "train",
]

_LAZY = {
    "Callback": ("pivot.runs.callbacks", "Callback"),
    "Config": ("pivot.config", "Config"),
    "recipes": ("pivot.recipes", None),
}
"""Attribute -> its module and its name there; None: the module itself."""


def train(
    start: str | Path | Config,
    out: str | Path | None = None,
    *,
    method: str | None = None,
    settings: Mapping[str, Any] | None = None,
    data: str | Path | Iterable[Mapping[str, Any]] | None = None,
    reward: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None,
    callbacks: Sequence[Callback] = (),
    engine: str = "local",
    quiet: bool = False,
) -> RunResult:
    """Train from the beginning into a new folder.

    Args:
        start: a recipe's name, a config file (YAML, TOML or JSON), or a `pivot.Config`.
        out: the run's folder; `runs/RECIPE-METHOD-SEED` by default.
        method: a method's name, or `package.module:name`.
        settings: settings by their dotted names, e.g. `{"train.steps": 20, "model.path": "Qwen/..."}`.
        data: the training set: a known name, a hub id, a file, or rows in memory (dictionaries, a
            `datasets.Dataset`); an image may be a PIL image, bytes or a path.
        reward: a function `f(completions, **columns) -> list of numbers`, or several; without it the verifier decides.
        callbacks: instances of `pivot.Callback`.
        engine: `local`, or one that `pivot.register_engine` made known.
        quiet: show no progress.

    Raises:
        pivot.errors.UserError: a value is invalid; the same checks as on the command line.

    Example:
        pivot.train("tiny", "runs/mine", method="dapo", settings={"train.steps": 20})
    """
    from pivot import api

    return api.train(
        start,
        out,
        method=method,
        settings=settings,
        data=data,
        reward=reward,
        callbacks=callbacks,
        engine=engine,
        quiet=quiet,
    )


def resume(
    out: str | Path,
    *,
    steps: int | None = None,
    data: Iterable[Mapping[str, Any]] | None = None,
    reward: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None,
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
    accept_lost_history: bool = False,
    accept_changed_config: bool = False,
) -> RunResult:
    """Continue a run exactly where it stopped.

    Args:
        out: the run's folder.
        steps: a new number of steps, which extends the run even if it has finished.
        data: the rows again, for a run that was trained on rows in memory.
        reward: the function again, for a run that was given one.
        callbacks: instances of `pivot.Callback`.
        quiet: show no progress.
        accept_lost_history: continue even if rows of its metrics or rollouts are lost, repeated or changed.
        accept_changed_config: continue even if its config.json was edited.
    """
    from pivot import api
    from pivot.runs.resuming import Accept

    accept = Accept(accept_lost_history, accept_changed_config)
    return api.resume(
        out, steps=steps, data=data, reward=reward, callbacks=callbacks, quiet=quiet, accept=accept
    )


def evaluate(
    model: str | Path,
    benchmarks: str | Sequence[str] | Sequence[Mapping[str, Any]],
    *,
    samples: int = 8,
    limit: int | None = None,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> list[dict[str, Any]]:
    """Measure accuracy@k of a model; resumable, like `pivot eval`.

    Args:
        model: `tiny`, a run's folder or one of its checkpoints, a Hugging Face folder, or a hub id.
        benchmarks: names of benchmarks, groups, files or hub ids, one or several; or rows in memory.
        samples: responses per prompt.
        limit: use only the first rows of each set.
        out: the folder of samples and scores; RUN/eval for a run, else eval/MODEL.
        settings: options of `pivot eval` by name: temperature, seed, device, recipe, grader, max_tokens, min_pixels,
            max_pixels, dtype.
        quiet: show no progress.

    Returns:
        The entries of scores.json, one per set: `name`, `accuracy`, `interval`, `prompts`, `samples` and more.

    Example:
        pivot.evaluate("runs/tiny", benchmarks=["tiny-test", "tiny-ood"], samples=4)
    """
    from pivot import api

    return api.evaluate(
        model, benchmarks, samples=samples, limit=limit, out=out, settings=settings, quiet=quiet
    )


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
    from pivot import token_scores

    return token_scores.score(
        model, image=image, question=question, response=response, method=method, step=step
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
    from pivot import token_credit

    texts = (response,) if isinstance(response, str) else tuple(response)
    if samples is None:
        samples = 0 if texts else 4
    request = token_credit.CreditRequest(texts, samples, tuple(methods), temperature, seed)
    return token_credit.credit_of(model, image, question, answer, request)


def register_method(method: Method) -> None:
    """Make a method of your own available by its name in this process."""
    from pivot.method import register_method

    register_method(method)


def register_family(model_type: str, family: type[Family]) -> None:
    """Make a model family of your own known by the `model_type` of a model's config.json."""
    from pivot.models.family import register_family

    register_family(model_type, family)


def register_engine(name: str, open_engine: OpenEngine) -> None:
    """Make an engine of your own available as `--engine NAME`."""
    from pivot.engines.base import register_engine

    register_engine(name, open_engine)


def register_tracker(name: str, open_tracker: OpenTracker) -> None:
    """Have a tracker of your own receive the metrics of every run."""
    from pivot.runs.trackers import register_tracker

    register_tracker(name, open_tracker)


def __getattr__(name: str) -> Any:
    """Classes and subpackages are imported on first use, so that `import pivot` stays light."""
    if name not in _LAZY:
        raise AttributeError(f"module 'pivot' has no attribute {name!r}")
    module_name, attribute = _LAZY[name]
    module = importlib.import_module(module_name)
    return module if attribute is None else getattr(module, attribute)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
