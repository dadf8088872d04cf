"""PIVOT: visually grounded reinforcement learning with verifiable rewards for vision-language models.

from pivot import recipes, train
train(recipes.get("tiny"), "runs/tiny")
"""

from __future__ import annotations

import importlib
from types import ModuleType

__version__ = "0.1.0"
__all__ = ["__version__", "recipes", "train"]


def __getattr__(name: str) -> ModuleType:
    """Rooms are imported when they are used: `import pivot` stays light."""
    if name in ("recipes", "train"):
        return importlib.import_module(f"pivot.{name}")
    raise AttributeError(f"module 'pivot' has no attribute {name!r}")
