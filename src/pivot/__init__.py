"""PIVOT: visually grounded reinforcement learning with verifiable rewards for vision-language models.

Example:
    import pivot

    result = pivot.train("tiny", settings={"train.steps": 20})
    pivot.evaluate(result.folder, benchmarks="tiny-test", samples=4)
    pivot.score(result.folder, image=image, question="How many?", response="\\boxed{3}").tokens[0].support

`import pivot` is light: each name is imported from its module on first use. docs/api.md describes them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pivot import recipes
    from pivot.api import evaluate, resume, train
    from pivot.config import Config
    from pivot.engines.base import register_engine
    from pivot.method import register_method
    from pivot.models.family import register_family
    from pivot.runs.callbacks import Callback
    from pivot.runs.trackers import register_tracker
    from pivot.token_credit import credit
    from pivot.token_scores import score

__version__ = "0.1.0"
__all__ = [
    "Callback",
    "Config",
    "__version__",
    "credit",
    "evaluate",
    "recipes",
    "register_engine",
    "register_family",
    "register_method",
    "register_tracker",
    "resume",
    "score",
    "train",
]

_HOMES = {
    "Callback": "pivot.runs.callbacks",
    "Config": "pivot.config",
    "credit": "pivot.token_credit",
    "evaluate": "pivot.api",
    "register_engine": "pivot.engines.base",
    "register_family": "pivot.models.family",
    "register_method": "pivot.method",
    "register_tracker": "pivot.runs.trackers",
    "resume": "pivot.api",
    "score": "pivot.token_scores",
    "train": "pivot.api",
}
"""Name -> the module that defines it; the same as the imports above, which type checkers read."""


def __getattr__(name: str) -> Any:
    """A name of `__all__`, imported on first use."""
    if name == "recipes":
        return importlib.import_module("pivot.recipes")
    if name not in _HOMES:
        raise AttributeError(f"module 'pivot' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
