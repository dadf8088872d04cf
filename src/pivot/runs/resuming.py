"""Where a run continues: its newest good checkpoint, whose configuration and history the folder must still have."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pivot.checkpoint_reader import Origin, read_origin
from pivot.errors import UserError
from pivot.runs.checkpoint import Checkpoint, CheckpointStore
from pivot.runs.folder import RunFolder
from pivot.terminal import printable

MAY_CHANGE = ("train.steps", "train.max_responses")
"""Settings that `RunFolder.extend` changes."""
SHOWN = 3
"""Changed settings that a message names."""


@dataclass(frozen=True)
class Accept:
    """Differences from what the checkpoint recorded with which a resumed run may go on."""

    lost_history: bool = False
    changed_config: bool = False


def find_start(folder: RunFolder, checkpoint_every: int, accept: Accept) -> Checkpoint | None:
    """The checkpoint to continue from; None if no step was ever saved.

    Later rows and checkpoints are set aside. A UserError leaves everything as it was.
    """
    store = CheckpointStore(folder.path)
    store.clean_leftovers()
    start = _last_good(folder, store)
    if start is None:
        _check_never_saved(folder, checkpoint_every)
    origin = read_origin(start.path) if start else None
    step = start.step if start else 0
    if start and origin:
        _check_config(folder, start, origin, accept)
    recorded = origin.rows if origin else None
    if start:
        _check_history(folder, start, origin, accept)
    store.set_aside_after(step)
    folder.settle_rows(step, recorded)
    return start


def _last_good(folder: RunFolder, store: CheckpointStore) -> Checkpoint | None:
    """None if there is no checkpoint. Reports damaged and missing ones; raises if none is usable."""
    damaged: list[str] = []
    start = store.latest_good(report=damaged.append)
    if start is None and damaged:
        raise UserError(
            f"{store.folder} holds no usable checkpoint: {'; '.join(damaged)}; restore one, or start again with "
            "another --out"
        )
    if start is not None:
        saved = folder.status().get("saved_step")
        if isinstance(saved, int) and saved > start.step and not (store.folder / f"step-{saved}").exists():
            damaged.append(f"checkpoint step-{saved} is missing")
        for sentence in damaged:
            print(printable(f"{sentence}; resuming from {start.path.name}"), file=sys.stderr)
    return start


def _check_never_saved(folder: RunFolder, checkpoint_every: int) -> None:
    """Without checkpoints a run starts again, unless it had some."""
    saved = folder.status().get("saved_step")
    steps = [row["step"] for row in folder.read_metrics() if isinstance(row.get("step"), int)]
    # The row of a step is written before its checkpoint, that of the next step after it.
    last = saved or max((step - 1 - (step - 1) % checkpoint_every for step in steps), default=0)
    if last:
        raise UserError(
            f"{folder.path / 'checkpoints'} holds no checkpoint, though the run had saved step {last}; restore the "
            f"folder from a copy, or train from the beginning with another --out, e.g. pivot train --config "
            f"{folder.path / 'config.json'} --out {folder.path}-again"
        )


def _check_config(folder: RunFolder, start: Checkpoint, origin: Origin, accept: Accept) -> None:
    before, now = (_flat(config) for config in (origin.config, folder.read_config()))
    names = [n for n in {**before, **now} if before.get(n) != now.get(n) and n not in MAY_CHANGE]
    if not names:
        return
    told = [f"{name} is {now.get(name)!r}, was {before.get(name)!r}" for name in names[:SHOWN]]
    more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    what = f"{folder.path / 'config.json'} differs from the configuration of {start.path.name}: {', '.join(told)}{more}"
    if not accept.changed_config:
        raise UserError(
            f"{what}; undo the change, or continue with it by --accept-changed-config (accept_changed_config=True "
            "in Python)"
        )
    print(printable(f"{what}; continuing with the changed configuration"), file=sys.stderr)


def _check_history(folder: RunFolder, start: Checkpoint, origin: Origin | None, accept: Accept) -> None:
    loss = folder.find_loss(start.step, origin.rows if origin else None)
    if loss is None:
        return
    what = f"the history of {folder.path} up to {start.path.name} is damaged ({loss})"
    if not accept.lost_history:
        raise UserError(
            f"{what}; restore the files from a copy, or continue without these rows by --accept-lost-history "
            "(accept_lost_history=True in Python)"
        )
    print(printable(f"{what}; continuing without these rows"), file=sys.stderr)
    known = folder.status().get("lost_history")
    told = [*(known if isinstance(known, list) else []), f"{start.path.name}: {loss}"]
    folder.update_status(lost_history=list(dict.fromkeys(told)))


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"train": {"lr": 1}}` as `{"train.lr": 1}`."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= (
            _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
        )
    return found
