"""PIVOT: visually grounded reinforcement learning with verifiable rewards for vision-language models.

Example:
    import pivot
    pivot.train(pivot.recipes.get("tiny"), "runs/tiny")
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pivot import recipes
    from pivot.config import Config
    from pivot.engines.base import OpenEngine
    from pivot.method import Method
    from pivot.models.family import Family
    from pivot.runs.run import RunResult
    from pivot.runs.trackers import OpenTracker

__version__ = "0.1.0"
__all__ = [
    "__version__",
    "recipes",
    "register_engine",
    "register_family",
    "register_method",
    "register_tracker",
    "resume",
    "train",
]


def train(config: Config, out: str | Path, *, engine: str = "local", quiet: bool = False) -> RunResult:
    """Train from the beginning into a new folder, with the local engine or one that a plugin registered."""
    from pivot.runs import run

    return run.train(config, Path(out), engine=engine, quiet=quiet)


def resume(
    out: str | Path,
    *,
    quiet: bool = False,
    accept_lost_history: bool = False,
    accept_changed_config: bool = False,
) -> RunResult:
    """Continue a stopped run exactly where it was.

    Args:
        accept_lost_history: continue even if rows of its metrics or rollouts are lost, repeated or changed.
        accept_changed_config: continue even if its config.json was edited.
    """
    from pivot.runs import run

    accept = run.Accept(accept_lost_history, accept_changed_config)
    return run.resume(Path(out), quiet=quiet, accept=accept)


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


def __getattr__(name: str) -> ModuleType:
    """Subpackages are imported on first use, so that `import pivot` stays light."""
    if name == "recipes":
        return importlib.import_module("pivot.recipes")
    raise AttributeError(f"module 'pivot' has no attribute {name!r}")
