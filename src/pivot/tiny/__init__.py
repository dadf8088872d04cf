"""A tiny Qwen2.5-VL that trains on one CPU core, through the same code as a 7B model."""

from __future__ import annotations

from pathlib import Path

from pivot.errors import UserError

STARTS = ("easy", "hard")
"""The shipped checkpoints: `easy` has the skill behind bad habits, `hard` also perceives less well."""

_ASSETS = Path(__file__).parent / "assets"


def checkpoint_path(start: str = "easy") -> Path:
    """The Hugging Face folder of a shipped checkpoint."""
    if start not in STARTS:
        raise UserError(f"start {start!r} is unknown: choose among {', '.join(STARTS)}.")
    return _ASSETS / start
