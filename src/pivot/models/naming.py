"""Which folder or hub id the name of a model means. Imports nothing heavy: a typo is reported at once."""

from __future__ import annotations

from pathlib import Path

from pivot import tiny
from pivot.durable import finished_checkpoints
from pivot.errors import UserError, did_you_mean

TINY = {"tiny": "easy", "tiny-hard": "hard"}
"""The shipped models -> their checkpoints."""


def resolve_model(name: str) -> str:
    """A tiny model -> its folder; a run's folder -> the model of its newest checkpoint; anything else unchanged."""
    if name in TINY:
        return str(tiny.checkpoint_path(TINY[name]))
    folder = Path(name).expanduser()
    if (folder / "model" / "config.json").is_file():
        return str(folder / "model")
    if checkpoints := finished_checkpoints(folder):
        return str(checkpoints[0][1] / "model")
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise UserError(
            f"{name} holds no config.json and no checkpoints; give a model folder or a run's folder"
        )
    if folder.is_dir():
        return str(folder)
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith("/"):
        raise UserError(f"the model folder {name} does not exist")
    if "/" not in name:
        raise UserError(
            f"there is no model {name!r}.{did_you_mean(name, TINY)} Give {', '.join(TINY)}, a model folder, a run's "
            "folder or a hub id (owner/name)."
        )
    return name
