"""Named starting points: one YAML file a recipe, in the form of any config file.

`recipe: NAME` in a file starts from that recipe; everything else is laid over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pivot.config.loading import load_file, overlay
from pivot.config.nearest import nearest
from pivot.config.schema import hints
from pivot.config.sections import Config
from pivot.errors import UserError

FOLDER = Path(__file__).parent
NO_RECIPE = Config().recipe

__all__ = ["from_mapping", "get", "names"]


def names() -> list[str]:
    """All recipes: the embedded ones, then those of the paper."""
    return sorted(
        (path.stem for path in FOLDER.glob("*.yaml")), key=lambda name: (not name.startswith("tiny"), name)
    )


def get(name: str) -> Config:
    """The recipe's configuration.

    Example:
        get("geo3k-7b").rollout.responses == 8
    """
    if name not in names():
        raise UserError(f"There is no recipe {name!r}; {nearest(name, names())}.")
    return replace(from_mapping(load_file(FOLDER / f"{name}.yaml")), recipe=name)


def from_mapping(mapping: Mapping[str, Any], start: str | None = None) -> Config:
    """A file's mapping over the recipe that it names itself, or over `start`."""
    named = mapping.get("recipe")
    if start is not None and named not in (None, start):
        raise UserError(
            f"The config file starts from recipe {named!r}, but --recipe says {start!r}: give one of them."
        )
    name = str(start or named or NO_RECIPE)
    # A run's config.json is complete in itself, also where its recipe was made in Python.
    own = name == NO_RECIPE or (name not in names() and mapping.keys() >= hints(Config).keys())
    return overlay(Config() if own else get(name), mapping)
