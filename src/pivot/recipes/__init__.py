"""Recipes: named starting configurations, one YAML file each.

`recipe: NAME` in a config file starts from that recipe; the other settings of the file override it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pivot.config.loading import load_file, overlay
from pivot.config.schema import hints
from pivot.config.sections import Config
from pivot.errors import UserError, nearest

FOLDER = Path(__file__).parent
NO_RECIPE = Config().recipe
NEW_SECTIONS = {"prompt"}
"""Sections that the config.json of an older run lacks."""

TINY_RECIPE, REAL_RECIPE = "tiny", "default"
SMALL_BYTES = 50 * 10**6
"""Weights of less than this are a tiny model's, which needs another learning rate than a real one."""

__all__ = ["for_model", "from_mapping", "get", "names"]


def names() -> list[str]:
    """All recipes: those of the tiny model first, then the paper's."""
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


def for_model(model: str | None) -> str:
    """The recipe to start from if none is named: `tiny` for tiny models, `default` for all others."""
    from pivot.models.loading import TINY, resolve_model

    if model is None or model in TINY:
        return TINY_RECIPE
    folder = Path(resolve_model(model))
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors")) if folder.is_dir() else 0
    return TINY_RECIPE if 0 < size < SMALL_BYTES else REAL_RECIPE


def from_mapping(mapping: Mapping[str, Any], start: str | None = None) -> Config:
    """A file's mapping applied to the recipe that it names, or to `start`."""
    named = mapping.get("recipe")
    if start is not None and named not in (None, start):
        raise UserError(
            f"The config file starts from recipe {named!r}, but --recipe is {start!r}; give only one of them."
        )
    name = str(start or named or NO_RECIPE)
    # A run's config.json is complete, even if its recipe was made in Python.
    own = name == NO_RECIPE or (name not in names() and mapping.keys() >= hints(Config).keys() - NEW_SECTIONS)
    return overlay(Config() if own else get(name), mapping)
