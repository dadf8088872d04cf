"""The models to evaluate, and the settings of each that make their scores comparable.

`pivot eval` and `pivot attention` share this file. Image limits, grader, response limit, dtype and prompt each come
from the first of these that has a value:

1. an option of the command;
2. the configuration of the run that trained the model;
3. the recipe given to the command;
4. for a model that no run trained, the runs evaluated beside it, if they agree;
5. a default: the paper's image limits, or those in the model's files if they are all smaller.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, Generic, TypeVar

from pivot import recipes
from pivot.checkpoint_reader import ORIGIN, check_model, lease, read_config
from pivot.config import Config, PromptConfig, from_dict, overlay
from pivot.durable import read_json, sha256
from pivot.errors import UserError
from pivot.evaluation.settings import Dtype
from pivot.models.loading import cached_if_offline, file_limits, resolve_model
from pivot.rewards.verifier import answer_finder
from pivot.terminal import warn

PAPER = "geo3k-3b"
"""The recipe with the default image limits, grader and response limit."""
FILES = "the model's files"
HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")
NOT_THE_MODEL = (".md", ".lock", ".gitattributes")

T = TypeVar("T")


@dataclass(frozen=True)
class Target:
    """A model to evaluate.

    Example:
        find_target("runs/x").when == "step-60"
    """

    name: str
    """As the user wrote it."""
    folder: Path
    """A Hugging Face folder."""
    run: Path | None = None
    """The folder of the run that trained it."""

    @property
    def title(self) -> str:
        """The last part of the name: a row's label, a folder's name."""
        return Path(self.name).name if self.run is None else self.run.resolve().name

    @property
    def when(self) -> str | None:
        """`step-40` for a checkpoint of a run; None for a model that no run trained."""
        return self.folder.parent.name if self.run else None

    @cached_property
    def config(self) -> Config | None:
        """The run's configuration without method and plugins: evaluating imports no code that a run names."""
        if self.run is None:
            return None
        stored, note = read_config(self.run)
        if note:
            warn(note)
        return from_dict({name: value for name, value in stored.items() if name not in ("method", "plugins")})

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the model's files, without notes such as README.md."""
        digest = hashlib.sha256()
        for path in sorted(self.folder.iterdir()):
            if path.is_file() and not path.name.endswith(NOT_THE_MODEL):
                digest.update(f"{path.name}\0{sha256(path)}\0".encode())
        return digest.hexdigest()[:16]

    @property
    def dtype(self) -> Dtype:
        """The run's, or the one in the model's files; float32 if that is neither float32 nor bfloat16."""
        if self.config is not None:
            return self.config.model.dtype
        saved = read_json(self.folder / "config.json", "restore the model's files")
        return "bfloat16" if (saved.get("dtype") or saved.get("torch_dtype")) == "bfloat16" else "float32"


def find_target(name: str) -> Target:
    """`tiny`, a Hugging Face folder, a run's folder, one of its checkpoints, or a hub id (downloaded once).

    A checkpoint whose model is not as it was saved is a UserError.
    """
    return _checked(name, _locate(name))


@contextmanager
def leased_target(name: str) -> Iterator[Target]:
    """The same; while the block runs, a training run does not delete the checkpoint."""
    folder = _locate(name)
    with lease(folder):
        yield _checked(name, folder)


def _locate(name: str) -> Path:
    folder = Path(resolve_model(name))
    return folder if folder.is_dir() else _fetch(name)


def _checked(name: str, folder: Path) -> Target:
    check_model(folder)
    if not (folder / "config.json").is_file():
        raise UserError(
            f"{folder} has no config.json; give a Hugging Face folder, a run's folder or a hub id."
        )
    return Target(name, folder, _run_of(folder))


def _run_of(folder: Path) -> Path | None:
    """RUN/checkpoints/step-N/model belongs to RUN."""
    is_checkpoint = folder.name == "model" and folder.parent.name.startswith("step-")
    if not is_checkpoint or folder.parent.parent.name != "checkpoints":
        return None
    run = folder.parents[2]
    return run if (run / "config.json").is_file() or (folder.parent / ORIGIN).is_file() else None


def _fetch(name: str) -> Path:
    cached = cached_if_offline(name)
    if cached != name:
        return Path(cached)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        return Path(snapshot_download(name, allow_patterns=list(HUB_FILES)))
    except GatedRepoError as gated:
        raise UserError(
            f"{name} is gated: accept its terms at https://huggingface.co/{name}, log in with `hf auth login` and "
            "try again."
        ) from gated
    except (RepositoryNotFoundError, HFValidationError) as unknown:
        raise UserError(
            f"there is no model {name!r}; give `tiny`, a Hugging Face folder, a run's folder or a hub id (owner/name)."
        ) from unknown
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as unreachable:
        raise UserError(
            f"the model {name!r} is neither a local folder nor in the local cache, and the hub cannot be reached; run "
            f"`hf download {name} --local-dir DIR` on a machine with network access and give DIR."
        ) from unreachable


@dataclass(frozen=True)
class Sourced(Generic[T]):
    """A value and where it comes from."""

    value: T
    source: str


@dataclass(frozen=True)
class Conditions:
    """The settings that follow from a model, each with its source."""

    limits: Sourced[tuple[int, int]]
    """Smallest and largest image area after resizing, in pixels."""
    grader: Sourced[str]
    max_tokens: Sourced[int]
    dtype: Sourced[Dtype]
    prompt: Sourced[PromptConfig]

    def describe(self, *, graded: bool = True) -> str:
        """One line for the terminal: every value with its source; without the grader if nothing is graded."""
        low, high = self.limits.value
        values = [
            (f"images of {low} to {high} pixels", self.limits.source),
            *[(f"grader {self.grader.value}", self.grader.source)] * graded,
            (f"at most {self.max_tokens.value} tokens", self.max_tokens.source),
            (self.dtype.value, self.dtype.source),
            *[(f"prompt: {self.prompt.value.summary}", self.prompt.source)] * bool(self.prompt.value.summary),
        ]
        parts = groupby(values, key=lambda item: item[1])
        return "; ".join(f"{', '.join(text for text, _ in items)} ({source})" for source, items in parts)


@dataclass(frozen=True)
class GivenOptions:
    """The options of a command; None: not given."""

    recipe: str | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None
    grader: str | None = None
    max_tokens: int | None = None
    dtype: Dtype | None = None
    system: str | None = None
    template: str | None = None
    answer: str | None = None


def choose_conditions(targets: Sequence[Target], given: GivenOptions) -> list[Conditions]:
    """The settings of every model.

    Example:
        choose_conditions([find_target("Qwen/Qwen2.5-VL-3B-Instruct"), find_target("runs/pivot")], GivenOptions())
    """
    recipe = None if given.recipe is None else recipes.get(given.recipe)
    trained = {t.name: _configured(t, t.config, "its run") for t in targets if t.config is not None}
    if recipe is not None and len(trained) == len(targets):
        raise UserError(
            f"--recipe {given.recipe} applies to models that no run trained, but every model here comes from a run and "
            "uses that run's settings; leave --recipe out, or change single values with options such as --max-pixels."
        )
    found = []
    for target in targets:
        if target.name in trained:
            chosen = trained[target.name]
        elif recipe is not None:
            chosen = _configured(target, recipe, f"recipe {recipe.recipe}")
        else:
            chosen = _as_runs(_default(target), trained)
        found.append(_with_options(chosen, given, target.name))
    return found


def _configured(target: Target, config: Config, source: str) -> Conditions:
    low, high = config.model.min_pixels, config.model.max_pixels
    own_low, own_high = (low, high) if low and high else file_limits(target.folder)
    limits = (low or own_low, high or own_high)
    whole = source if low and high else f"{source}: {FILES}"
    return Conditions(
        Sourced(limits, whole),
        Sourced(config.reward.grader, source),
        Sourced(config.rollout.max_tokens, source),
        Sourced(config.model.dtype, source),
        Sourced(config.prompt, source),
    )


def _default(target: Target) -> Conditions:
    """The paper's limits, unless the model's own are all smaller, as those of the tiny models are."""
    paper = recipes.get(PAPER)
    chosen = _configured(target, paper, f"default, recipe {PAPER}")
    own = file_limits(target.folder)
    is_for_small_images = own[1] < chosen.limits.value[0]
    limits = Sourced(own, FILES) if is_for_small_images else chosen.limits
    return replace(chosen, limits=limits, dtype=Sourced(target.dtype, FILES))


def _as_runs(default: Conditions, trained: dict[str, Conditions]) -> Conditions:
    """The default, with every value on which the other models' runs agree."""
    name = next(iter(trained)) if len(trained) == 1 else "the other runs"

    def agreed(own: Sourced[T], of: Callable[[Conditions], Sourced[T]]) -> Sourced[T]:
        values = {of(run).value for run in trained.values()}
        return Sourced(values.pop(), f"as {name}") if len(values) == 1 else own

    return Conditions(
        agreed(default.limits, lambda c: c.limits),
        agreed(default.grader, lambda c: c.grader),
        agreed(default.max_tokens, lambda c: c.max_tokens),
        agreed(default.dtype, lambda c: c.dtype),
        agreed(default.prompt, lambda c: c.prompt),
    )


def _with_options(chosen: Conditions, given: GivenOptions, model: str) -> Conditions:
    changes: dict[str, Any] = {}
    if given.min_pixels is not None or given.max_pixels is not None:
        changes["limits"] = _limits(chosen.limits, given, model)
    for name in ("grader", "max_tokens", "dtype"):
        value = getattr(given, name)
        if value is not None:
            changes[name] = Sourced(value, f"--{name.replace('_', '-')}")
    asked = {name: getattr(given, name) for name in ("system", "template", "answer")}
    asked = {name: value for name, value in asked.items() if value is not None}
    if asked:
        options = " and ".join(f"--{name}" for name in asked)
        changes["prompt"] = Sourced(overlay(chosen.prompt.value, asked, "prompt."), options)
        answer_finder(changes["prompt"].value.answer)
    return replace(chosen, **changes)


def _limits(own: Sourced[tuple[int, int]], given: GivenOptions, model: str) -> Sourced[tuple[int, int]]:
    both = {"--min-pixels": given.min_pixels, "--max-pixels": given.max_pixels}
    named = {name: value for name, value in both.items() if value is not None}
    for name, value in named.items():
        if value < 1:
            raise UserError(f"{name} is {value}; it must be at least 1.")
    low = own.value[0] if given.min_pixels is None else given.min_pixels
    high = own.value[1] if given.max_pixels is None else given.max_pixels
    source = " and ".join(named) + ("" if len(named) == 2 else f", else {own.source}")
    if low > high:
        raise UserError(
            f"images for {model} would need at least {low} and at most {high} pixels ({source}); give --min-pixels and "
            "--max-pixels, with the first no larger than the second."
        )
    return Sourced((low, high), source)
