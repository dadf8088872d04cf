"""How each of several models is evaluated so that their scores compare; `pivot eval` and `pivot attention` share it.

Of image limits, grader, response limit and dtype each comes from the first of these that has it:

1. an option of the command;
2. the configuration of the run that made the model;
3. the recipe that the command names;
4. the runs that stand beside a model which no run made, where they agree;
5. a default: the paper's image limits, or those of the model's files where these are all smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Generic, TypeVar

from pivot import recipes
from pivot.config import Config
from pivot.errors import UserError
from pivot.evaluate.settings import Dtype
from pivot.evaluate.target import Target
from pivot.models.loading import file_limits

PAPER = "geo3k-3b"
"""The recipe whose image limits, grader and response limit hold where nothing else says any."""
FILES = "the model's files"

T = TypeVar("T")


@dataclass(frozen=True)
class Choice(Generic[T]):
    """A value and where it comes from."""

    value: T
    source: str


@dataclass(frozen=True)
class Conditions:
    """How one model is evaluated."""

    limits: Choice[tuple[int, int]]
    """Smallest and largest image area after resizing, in pixels."""
    grader: Choice[str]
    max_tokens: Choice[int]
    dtype: Choice[Dtype]

    def describe(self, *, graded: bool = True) -> str:
        """One line for the screen: every value with its source; the grader only where something is graded."""
        low, high = self.limits.value
        said = [
            (f"images of {low} to {high} pixels", self.limits.source),
            *[(f"grader {self.grader.value}", self.grader.source)] * graded,
            (f"at most {self.max_tokens.value} tokens", self.max_tokens.source),
            (self.dtype.value, self.dtype.source),
        ]
        parts = groupby(said, key=lambda item: item[1])
        return "; ".join(f"{', '.join(text for text, _ in items)} ({source})" for source, items in parts)


@dataclass(frozen=True)
class Asked:
    """The options of a command; None: not given."""

    recipe: str | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None
    grader: str | None = None
    max_tokens: int | None = None
    dtype: Dtype | None = None


def choose_conditions(targets: Sequence[Target], asked: Asked) -> list[Conditions]:
    """The conditions of every model.

    Example:
        choose_conditions([find_target("Qwen/Qwen2.5-VL-3B-Instruct"), find_target("runs/pivot")], Asked())
    """
    recipe = None if asked.recipe is None else recipes.get(asked.recipe)
    trained = {t.name: _configured(t, t.config, "its run") for t in targets if t.config is not None}
    if recipe is not None and len(trained) == len(targets):
        raise UserError(
            f"--recipe {asked.recipe} is for models that no run made, but every model here comes from a run and keeps "
            "that run's settings; leave it out, or change single values with options such as --max-pixels."
        )
    found = []
    for target in targets:
        if target.name in trained:
            chosen = trained[target.name]
        elif recipe is not None:
            chosen = _configured(target, recipe, f"recipe {recipe.recipe}")
        else:
            chosen = _beside(_default(target), trained)
        found.append(_with_options(chosen, asked, target.name))
    return found


def _configured(target: Target, config: Config, source: str) -> Conditions:
    low, high = config.model.min_pixels, config.model.max_pixels
    own_low, own_high = (low, high) if low and high else file_limits(target.folder)
    limits = (low or own_low, high or own_high)
    whole = source if low and high else f"{source}: {FILES}"
    return Conditions(
        Choice(limits, whole),
        Choice(config.reward.grader, source),
        Choice(config.rollout.max_tokens, source),
        Choice(config.model.dtype, source),
    )


def _default(target: Target) -> Conditions:
    """The paper's limits, unless the model is made for images that are all smaller, as the tiny models are."""
    paper = recipes.get(PAPER)
    chosen = _configured(target, paper, f"default, recipe {PAPER}")
    own = file_limits(target.folder)
    is_for_small_images = own[1] < chosen.limits.value[0]
    limits = Choice(own, FILES) if is_for_small_images else chosen.limits
    return replace(chosen, limits=limits, dtype=Choice(target.dtype, FILES))


def _beside(default: Conditions, trained: dict[str, Conditions]) -> Conditions:
    """Each condition that the runs beside it agree on."""
    name = next(iter(trained)) if len(trained) == 1 else "the runs beside it"

    def agreed(own: Choice[T], of: Callable[[Conditions], Choice[T]]) -> Choice[T]:
        values = {of(run).value for run in trained.values()}
        return Choice(values.pop(), f"as {name}") if len(values) == 1 else own

    return Conditions(
        agreed(default.limits, lambda c: c.limits),
        agreed(default.grader, lambda c: c.grader),
        agreed(default.max_tokens, lambda c: c.max_tokens),
        agreed(default.dtype, lambda c: c.dtype),
    )


def _with_options(chosen: Conditions, asked: Asked, model: str) -> Conditions:
    changes: dict[str, Any] = {}
    if asked.min_pixels is not None or asked.max_pixels is not None:
        changes["limits"] = _asked_limits(chosen.limits, asked, model)
    for name in ("grader", "max_tokens", "dtype"):
        value = getattr(asked, name)
        if value is not None:
            changes[name] = Choice(value, f"--{name.replace('_', '-')}")
    return replace(chosen, **changes)


def _asked_limits(own: Choice[tuple[int, int]], asked: Asked, model: str) -> Choice[tuple[int, int]]:
    both = {"--min-pixels": asked.min_pixels, "--max-pixels": asked.max_pixels}
    given = {name: value for name, value in both.items() if value is not None}
    for name, value in given.items():
        if value < 1:
            raise UserError(f"{name} is {value}; it must be at least 1.")
    low = own.value[0] if asked.min_pixels is None else asked.min_pixels
    high = own.value[1] if asked.max_pixels is None else asked.max_pixels
    source = " and ".join(given) + ("" if len(given) == 2 else f", else {own.source}")
    if low > high:
        raise UserError(
            f"the images of {model} would have at least {low} and at most {high} pixels ({source}); give "
            "--min-pixels and --max-pixels, the first no larger than the second."
        )
    return Choice((low, high), source)
