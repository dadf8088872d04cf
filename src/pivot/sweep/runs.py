"""From a plan to its runs: configuration, folder and the commands that train and evaluate each."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pivot import recipes
from pivot.config import (
    Config,
    PromptConfig,
    apply_settings,
    from_dict,
    overlay,
    to_dict,
    validate,
)
from pivot.config.datasets import as_evaluated
from pivot.config.methods import find_method, settings_for
from pivot.config.schema import all_fields
from pivot.config.validation import problems
from pivot.errors import UserError
from pivot.evaluation.sets import expand
from pivot.runs.folder import has_progress, read_status
from pivot.sweep.plan import MEASURES, TRAIN, Arm, Engine, Plan

NO_NUMBERS = ("recipe", "plugins", "log", "checkpoint")
"""Fields and sections that change no number of a run; what a plugin registers is named by other settings."""

OLD_NAMES = {"native": "embedded"}
"""Sampler -> its name in `pivot eval --engine` and in scores of older versions."""


@dataclass(frozen=True)
class Overrides:
    """What the command line adds to the plan's runs and evaluations."""

    settings: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    """`NAME=FILE`: local copies of benchmarks."""
    papo_eval: bool = False
    plugins: tuple[str, ...] = ()

    @property
    def plugin_options(self) -> list[str]:
        return [word for plugin in self.plugins for word in ("--plugin", plugin)]


@dataclass(frozen=True)
class SweepRun:
    """A model that the plan asks for: one seed of an arm, or the model before training."""

    plan: Plan
    arm: str
    seed: int | None
    """None: not trained."""
    config: Config
    settings: tuple[str, ...]
    """What `--set` gives the recipe and method, in order."""
    folder: Path
    missing: tuple[str, ...] = ()
    """Settings that the user must give and did not."""
    overrides: Overrides = field(default_factory=Overrides)

    @property
    def label(self) -> str:
        return self.arm if self.seed is None else f"{self.arm}, seed {self.seed}"

    @property
    def model(self) -> str:
        """What `--model` takes."""
        return self.config.model.path if self.seed is None else str(self.folder)

    @property
    def when(self) -> str | None:
        """How the evaluations of this model are marked: its last checkpoint."""
        if self.seed is None:
            return None
        # A run with a budget of responses may end before its last step.
        ended = (
            None if self.config.train.max_responses is None else read_status(self.folder).get("saved_step")
        )
        return f"step-{ended or self.config.train.steps}"

    @property
    def benchmarks(self) -> list[str]:
        """The plan's, without the training prompts of a model that was not trained."""
        return [name for name in self.plan.benchmarks if self.seed is not None or name != TRAIN]

    @property
    def is_trained(self) -> bool:
        """Also true of a model that needs no training."""
        return self.seed is None or read_status(self.folder).get("status") == "finished"

    def train_command(self, engine: Engine) -> list[str]:
        """From the beginning, as a person would type it."""
        words = ["train", *self.overrides.plugin_options, *engine.options(), "--recipe", self.plan.recipe]
        words += ["--method", self.config.method.spec, "--seed", str(self.seed)]
        for setting in self.settings:
            words += ["--set", setting]
        return [*words, "--out", str(self.folder)]

    def next_train_command(self) -> list[str]:
        """From the beginning, or from the last checkpoint."""
        if has_progress(self.folder):
            return ["train", "--resume", str(self.folder)]
        return self.train_command(self.plan.engine)

    def eval_command(self, benchmarks: Sequence[str]) -> list[str]:
        """Everything that a score depends on is explicit: base and trained models are measured alike."""
        plan = self.plan
        words = [
            "eval",
            *self.overrides.plugin_options,
            "--model",
            self.model,
            "--benchmarks",
            ",".join(as_evaluated(self.config.data)[0] if name == TRAIN else name for name in benchmarks),
        ]
        words += ["--samples", str(plan.samples)]
        words += [] if plan.limit is None else ["--limit", str(plan.limit)]
        for name, value in self.eval_settings().items():
            words += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
        for path in self.overrides.paths:
            words += ["--path", path] if path.partition("=")[0] in expand(benchmarks) else []
        words += ["--papo-eval"] if self.overrides.papo_eval else []
        return [*words, "--out", str(self.folder / "eval")]

    def eval_settings(self) -> dict[str, Any]:
        """Options of `pivot eval` that the recipe decides; None: what the model's files say."""
        model, papers = self.config.model, to_dict(PromptConfig())
        return {
            "engine": OLD_NAMES.get(self.plan.sampler, self.plan.sampler),
            "max_tokens": self.config.rollout.max_tokens,
            "min_pixels": model.min_pixels,
            "max_pixels": model.max_pixels,
            "dtype": model.dtype,
            "grader": self.config.reward.grader,
            **{name: value for name, value in to_dict(self.config.prompt).items() if value != papers[name]},
        }


def plan_runs(plan: Plan, out: Path, overrides: Overrides | None = None) -> list[SweepRun]:
    """Every arm x seed in the plan's order; a base arm once. All configurations are valid.

    Example:
        plan_runs(load_plan(Path("experiments/paper/table1-3b.yaml")), Path("runs/paper"))[1].label == "GRPO, seed 0"
    """
    overrides = overrides or Overrides()
    return [run for name, arm in plan.arms.items() for run in _arm_runs(plan, name, arm, out, overrides)]


def _arm_runs(plan: Plan, name: str, arm: Arm, out: Path, overrides: Overrides) -> Iterator[SweepRun]:
    method = find_method(arm.method)
    given = settings_for(method, (s for s in overrides.settings if _belongs(s, arm, plan)))
    for seed in [None] if arm.base else range(plan.seeds):
        settings = (*settings_for(method, plan.settings), *arm.settings, *given)
        config = _config(plan.recipe, arm, seed, settings)
        missing = tuple(path for path in arm.needs if _value(config, path) is None and any(problems(config)))
        if not missing:
            validate(config)
            if config.train.epochs is not None:
                raise UserError(
                    "a plan compares runs of equal length: set train.steps instead of train.epochs"
                )
            _check_curve(plan, config)
            _check_training_set(plan, config)
        folder = _folder(out, plan, config, _folder_name(plan, arm, seed, config, given))
        yield SweepRun(plan, name, seed, config, settings, folder, missing, overrides)


def _check_curve(plan: Plan, config: Config) -> None:
    """Screening and measures of the validation curve need one."""
    asked = [
        claim.measure for claim in plan.claims if claim.measure in MEASURES and claim.measure != "accuracy"
    ]
    if config.eval.every < 1 and (plan.screen or asked):
        what = f"a claim about {asked[0]!r}" if asked else "screen"
        raise UserError(
            f"{what} needs the validation curve, but eval.every is 0: set how often it is measured."
        )


def _check_training_set(plan: Plan, config: Config) -> None:
    """An evaluation on the training prompts reads one set, and no rows that the run did not train on."""
    size, sets = config.data.size, config.data.sets
    if TRAIN in plan.sets and (
        len(sets) > 1 or (size is not None and (plan.limit is None or plan.limit > size))
    ):
        raise UserError(
            f"benchmark `{TRAIN}` evaluates the prompts of one training set: name one in data.train, and give "
            "`limit` at most data.size rows."
        )


def _belongs(setting: str, arm: Arm, plan: Plan) -> bool:
    """A setting that some arms need goes to them alone: it would give the others another digest for the same run."""
    path = setting.partition("=")[0].strip()
    needed = any(path in other.needs for other in plan.arms.values())
    return path in arm.needs or not needed


def _config(recipe: str, arm: Arm, seed: int | None, settings: Sequence[str]) -> Config:
    """What `pivot train --recipe R --method M --seed S --set ...` resolves to."""
    for setting in settings:
        path = setting.partition("=")[0].strip()
        if path in ("method", "train.seed"):
            raise UserError(
                f"{setting} cannot be a setting of a plan: an arm names its method, `seeds` its seeds."
            )
    config = recipes.get(recipe)
    if seed is not None:
        config = overlay(config, {"method": arm.method, "train": {"seed": seed}})
    return apply_settings(config, settings)


def _value(config: Config, path: str) -> Any:
    found = {info.path: info.value for info in all_fields(config)}
    if path not in found:
        raise UserError(
            f"an arm needs {path!r}, which is not a setting; `pivot train --help-config` lists them."
        )
    return found[path]


def _folder_name(plan: Plan, arm: Arm, seed: int | None, config: Config, given: Sequence[str]) -> str:
    """Readable, and different whenever a number could be: `pivot-kind-grey-seed-0-1f0c99ab`.

    It does not contain the arm's name, so that plans which share a folder share their runs.
    """
    if seed is None:
        told = hashlib.sha256(config.model.path.encode()).hexdigest()[:8]
        return f"base-{slug(Path(config.model.path).name)}-{told}"
    words, named = [arm.method], _named(plan, arm)
    for i, setting in enumerate(arm.settings):
        if any(setting in settings for settings in named.values()):
            continue
        common = settings_for(find_method(arm.method), plan.settings)
        without = (*common, *arm.settings[:i], *arm.settings[i + 1 :], *given)
        if _config(plan.recipe, arm, seed, without) != config:
            words.append(setting.partition("=")[0].rpartition(".")[2] + "-" + setting.partition("=")[2])
    words += named
    return f"{slug('-'.join(words))}-seed-{seed}-{digest(config, plan.engine)}"


def _named(plan: Plan, arm: Arm) -> dict[str, tuple[str, ...]]:
    """Label -> settings of the arm's values that have names."""
    axes = {name: plan.vary[name] for name in arm.values if plan.vary[name].is_named}
    return {arm.values[name]: axis.values[arm.values[name]] for name, axis in axes.items()}


def _folder(out: Path, plan: Plan, config: Config, name: str) -> Path:
    """The run's folder. Older versions may have another digest for the same settings: their runs are found by these."""
    stem, _, wanted = name.rpartition("-")
    for other in sorted(out.glob(f"{stem}-*/config.json")) if not (out / name).exists() else ():
        status = other.parent / "run.json"
        engine = json.loads(status.read_bytes()).get("engine", "local") if status.exists() else "local"
        if (
            engine == plan.engine.name
            and digest(from_dict(json.loads(other.read_bytes())), plan.engine) == wanted
        ):
            return other.parent
    return out / name


def digest(config: Config, engine: Engine) -> str:
    """Of all that determines a run: the resolved configuration and which engine it runs on."""
    told: dict[str, Any] = {key: value for key, value in to_dict(config).items() if key not in NO_NUMBERS}
    told["method"] = {key: value for key, value in told["method"].items() if key != "summary"}
    text = json.dumps(told | {"engine": engine.name}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-")
