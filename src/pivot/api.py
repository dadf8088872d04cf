"""What `import pivot` offers: train, resume and evaluate from Python, with the command line's own checks."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pivot import recipes
from pivot.cli import evaluating
from pivot.cli.eval import add_arguments
from pivot.config import Config, load_file, overlay, to_dict, validate
from pivot.config.loading import choose_duration
from pivot.data import DataSpec, load
from pivot.data.memory import MEMORY, as_rows
from pivot.errors import UserError, nearest
from pivot.evaluation.sets import EvaluationSet
from pivot.evaluation.target import leased_target
from pivot.rewards.judge import MEMORY as FUNCTION
from pivot.rewards.judge import name_of
from pivot.runs import extension
from pivot.runs import run as runs
from pivot.runs.callbacks import Callback
from pivot.runs.resuming import Accept
from pivot.runs.run import InProcess, RunResult

Reward = Callable[..., Any] | Sequence[Callable[..., Any]]
FILES = (".yaml", ".yml", ".toml", ".json")


def train(
    start: str | Path | Config,
    out: str | Path | None = None,
    *,
    method: str | None = None,
    settings: Mapping[str, Any] | None = None,
    data: str | Path | Iterable[Mapping[str, Any]] | None = None,
    reward: Reward | None = None,
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
    config = _start(start)
    if method is not None:
        config = overlay(config, {"method": method})
    name, rows = _data(data)
    if name is not None:
        config = overlay(config, {"data": {"train": name}})
    config = with_settings(config, settings or {})
    if reward is not None:
        config = _with_functions(config, reward)
    config = checked(config)
    if out is None:
        out = Path("runs") / f"{config.recipe}-{config.method.name}-{config.train.seed}"
    inside = InProcess(rows, reward, callbacks)
    return runs.train(config, Path(out), engine=engine, quiet=quiet, inside=inside)


def resume(
    out: str | Path,
    *,
    steps: int | None = None,
    data: Iterable[Mapping[str, Any]] | None = None,
    reward: Reward | None = None,
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
    out = Path(out)
    name, rows = _data(data)
    config = extension.stored_config(out)
    if name is not None and name != config.data.train:
        raise UserError(
            f"{out} trains on {config.data.train}, not on {'rows in memory' if rows else name}: leave data out"
        )
    if reward is not None:
        _with_functions(config, reward)
    accept = Accept(accept_lost_history, accept_changed_config)
    inside = InProcess(rows, reward, callbacks)
    if steps is None:
        return runs.resume(out, quiet=quiet, accept=accept, inside=inside)
    with extension.restored_on_mistake(out):
        extension.extend(out, steps=steps)
        return runs.resume(out, quiet=quiet, accept=accept, inside=inside)


def evaluate(
    model: str | Path,
    benchmarks: str | Sequence[str] | Iterable[Mapping[str, Any]],
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
    names, rows = _sets(benchmarks)
    given = {
        **(settings or {}),
        "model": model,
        "benchmarks": names,
        "samples": samples,
        "limit": limit,
        "out": out,
    }
    args = _eval_options({**given, "quiet": quiet})
    show = (lambda _: None) if quiet else print
    with leased_target(args.model[0]) as target:
        sets = evaluating.chosen_sets(args) if rows is None else [_set_of(rows, limit)]
        chosen = evaluating.settings_for([target], args, show)[target.name]
        folder = evaluating.folders([target], args.out)[0]
        return evaluating.evaluate_target(target, sets, chosen, folder, args)


def _sets(benchmarks: Any) -> tuple[str, list[Mapping[str, Any]] | None]:
    """The names of the sets, or rows in memory."""
    if isinstance(benchmarks, str | Path):
        return str(benchmarks), None
    if not isinstance(benchmarks, Iterable) or isinstance(benchmarks, Mapping):
        raise UserError(f"benchmarks is {benchmarks!r}, but must be names, or rows (dictionaries) in memory")
    given = list(benchmarks)
    if given and all(isinstance(one, str | Path) for one in given):
        return ",".join(map(str, given)), None
    return MEMORY, as_rows(given)


def _set_of(rows: list[Mapping[str, Any]], limit: int | None) -> EvaluationSet:
    data = load(DataSpec(MEMORY, split="rows", limit=limit, check_images="full", rows=tuple(rows)))
    if not data.prompts:
        raise UserError(f"no row can be used: {data.summary()}")
    return EvaluationSet(data.name, data.prompts)


def _eval_options(given: Mapping[str, Any]) -> argparse.Namespace:
    """The options of `pivot eval`, read and checked by its own parser."""
    parser = argparse.ArgumentParser(exit_on_error=False, add_help=False)
    add_arguments(parser)
    known = {action.dest: action for action in parser._actions}
    words: list[str] = []
    for name, value in given.items():
        if name not in known:
            raise UserError(f"pivot.evaluate has no setting {name!r}; {nearest(name, known)}")
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words += [option] * value
        elif value is not None:
            words.append(f"{option}={value}")
    try:
        return parser.parse_args(words)
    except argparse.ArgumentError as error:
        raise UserError(f"pivot.evaluate: {error.argument_name} {error.message}") from error


def with_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    """`config` with settings by their dotted names, as `--set` takes them, or in nested mappings.

    Example:
        with_settings(config, {"train.steps": 20, "method.beta": 0.3, "eval": {"every": 5}})
    """
    if not isinstance(settings, Mapping):
        raise UserError(
            f"settings is a {type(settings).__name__}, but must be a dictionary such as {{'train.steps': 20}}."
        )
    nested = settings.get("train", {})
    dotted = {
        name.removeprefix("train."): v for name, v in settings.items() if str(name).startswith("train.")
    }
    train = {**nested, **dotted} if isinstance(nested, Mapping) else {}
    choose_duration(train)
    config = overlay(config, {"train": {"epochs": train.get("epochs", config.train.epochs)}})
    for path, value in settings.items():
        for key in reversed(str(path).split(".")):
            value = {key: value}
        config = overlay(config, value)
    return config


def checked(config: Config) -> Config:
    """The configuration with every value of its field's type; raises a UserError for the first that is invalid."""
    sections = {name: value for name, value in to_dict(config).items() if name != "method"}
    config = overlay(config, sections)
    validate(config)
    return config


def _start(start: str | Path | Config) -> Config:
    """A recipe by name, a config file, or a configuration."""
    if isinstance(start, Config):
        return start
    if not isinstance(start, str | Path):
        raise UserError(
            f"train starts from a recipe's name, a config file or a Config, not from a {type(start).__name__}"
        )
    if Path(start).suffix in FILES:
        return recipes.from_mapping(load_file(start))
    return recipes.get(str(start))


def _data(data: Any) -> tuple[str | None, list[Mapping[str, Any]] | None]:
    """The value of `data.train`, and the rows where they are in memory."""
    if data is None or isinstance(data, str | Path):
        return (None if data is None else str(data)), None
    if not isinstance(data, Iterable) or isinstance(data, Mapping):
        raise UserError(f"data is a {type(data).__name__}, but must be rows (dictionaries), a name or a path")
    return MEMORY, as_rows(data)


def _with_functions(config: Config, reward: Any) -> Config:
    """The configuration of a run with reward functions of this process: `reward.functions` records their names."""
    functions = [reward] if callable(reward) or not isinstance(reward, list | tuple) else list(reward)
    for function in functions:
        if not callable(function):
            raise UserError(
                f"reward is {function!r}, but must be a function; one in a module is named by the setting "
                "reward.functions"
            )
    names = [name_of(function) for function in functions]
    known = [name for name in config.reward.functions if name.startswith(FUNCTION)]
    if known and known != names:
        raise UserError(
            f"the run is rewarded by {', '.join(known)}, not by {', '.join(names)}; give the functions it began with"
        )
    return overlay(config, {"reward": {"functions": [*config.reward.functions, *([] if known else names)]}})
