"""More steps or responses for a run, and the check that the options of a resumed run agree with it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pivot.checkpoint_reader import read_config
from pivot.config import Config, TrainConfig, from_dict, overlay
from pivot.config.describe import spell
from pivot.config.schema import all_fields
from pivot.durable import write_bytes, write_json
from pivot.errors import UserError
from pivot.runs.folder import RunFolder, require_run
from pivot.runs.metrics import TOTAL_RESPONSES

LENGTH = ("train.steps", "train.max_responses")
"""The settings that `extend` changes."""
CHANGED = ("run.json", "eval/scores.json", "config.json")
"""Files that it changes."""


def stored_config(out: Path) -> Config:
    """The configuration in a run's folder."""
    require_run(out)
    return from_dict(read_config(out)[0])


def differences(stored: Config, asked: Config) -> dict[str, tuple[str, str]]:
    """Setting -> the run's value and the asked one, where they differ."""
    run = {info.path: info.value for info in all_fields(stored)}
    new = {info.path: info.value for info in all_fields(asked)}
    return {
        path: (spell(run.get(path)), spell(value))
        for path, value in new.items()
        if path != "method.summary" and run.get(path) != value
    }


def check_agrees(out: Path, stored: Config, asked: Config) -> None:
    """Raise a UserError that names each setting, other than those of its length, that contradicts the run's."""
    differing = {path: pair for path, pair in differences(stored, asked).items() if path not in LENGTH}
    if "method.name" in differing:  # its settings differ too, which says nothing more
        differing = {path: pair for path, pair in differing.items() if not path.startswith("method.")} | {
            "method": differing["method.name"]
        }
    if differing:
        named = "; ".join(f"{path} is {run} in the run, {new} here" for path, (run, new) in differing.items())
        raise UserError(
            f"{out} cannot be resumed with other settings ({named}): leave them out, or start a new run with --out"
        )


def extend(out: Path, **length: int | None) -> str:
    """Give a stopped or finished run another length: new values of `steps` and `max_responses`. Says what changed.

    The status changes first and config.json last: whenever this is interrupted, the run can be resumed. The scores
    measured after training keep their numbers under the name of the step that they belong to.
    """
    with RunFolder.open(out) as folder:
        config = stored_config(out)
        train = overlay(config, {"train": length}).train
        before = {name: value for name, value in vars(config.train).items() if name in length}
        changed = [name for name in before if vars(train)[name] != before[name]]
        if not changed:
            return ""
        rows = folder.read_metrics()
        _check_length(out, config, train, rows)
        told = [
            f"{spell(vars(train)[name])} {_WORDS[name]} instead of {spell(before[name])}" for name in changed
        ]
        folder.update_status(status="stopped", reason=f"extended: {', '.join(told)}")
        _rename_after(out / "eval" / "scores.json", f"step-{rows[-1]['step'] if rows else 0}")
        folder.extend({name: vars(train)[name] for name in changed})
    return ", ".join(told)


_WORDS = {"steps": "steps", "max_responses": "responses"}


def _check_length(out: Path, config: Config, train: TrainConfig, rows: Sequence[Mapping[str, Any]]) -> None:
    """A run cannot end before where it is, and more steps alone do not help one whose budget is used up."""
    taken = max((row["step"] for row in rows), default=0)
    if train.steps < max(taken, 1):
        raise UserError(
            f"{out} has taken {taken} of its {config.train.steps} steps, so it cannot end after {train.steps}"
        )
    budget, sampled = train.max_responses, max((row.get(TOTAL_RESPONSES, 0) for row in rows), default=0)
    if budget is None or taken == 0:
        return
    if budget < sampled:
        raise UserError(f"{out} has sampled {sampled} responses, so it cannot end after {budget}")
    if budget - sampled < config.rollout.responses:
        raise UserError(
            f"{out} has used up its budget of {budget} responses: raise it too, by --set train.max_responses=N"
        )


@contextmanager
def restored_on_mistake(out: Path) -> Iterator[None]:
    """Put a run's folder back as it was before `extend` if a user's mistake ends the block before another step.

    Example:
        with restored_on_mistake(out):
            extend(out, 200)
            resume(out)
    """
    before = {path: path.read_bytes() for name in CHANGED if (path := out / name).exists()}
    recorded = _size(out / "metrics.jsonl")
    try:
        yield
    except UserError:
        config = out / "config.json"
        extended = config in before and config.read_bytes() != before[config]
        if extended and _size(out / "metrics.jsonl") <= recorded:
            with RunFolder.open(out):
                for path, content in before.items():
                    write_bytes(path, content)
        raise


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _rename_after(path: Path, when: str) -> None:
    """Scores of `after` training are those of a step in the middle now."""
    if not path.exists():
        return
    scores: dict[str, Any] = json.loads(path.read_bytes())
    entries = [_renamed(entry, when) for entry in scores["evaluations"]]
    if entries != scores["evaluations"]:
        # Of two entries for one step, e.g. one of `pivot eval`, the later one counts.
        unique = {(e["name"], e.get("when"), bool(e.get("blank"))): e for e in entries}
        write_json(path, {**scores, "evaluations": list(unique.values())})


def _renamed(entry: Mapping[str, Any], when: str) -> dict[str, Any]:
    return {**entry, "when": when} if entry.get("when") == "after" else dict(entry)
