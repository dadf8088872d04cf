"""The training loop: the step (`trainer.py`), the run around it (`loop.py`) and what it leaves behind.

The room itself can be called: `from pivot import train; train(recipes.get("tiny"), "runs/tiny")`.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pivot.config import Config
    from pivot.train.loop import RunResult


class _Room(types.ModuleType):
    """`pivot.train` is both the package and, as its users call it, the function."""

    def __call__(self, config: Config, out: str | Path, *, quiet: bool = False) -> RunResult:
        """Train from the beginning into a new folder."""
        from pivot.train.loop import train

        return train(config, Path(out), quiet=quiet)


sys.modules[__name__].__class__ = _Room
