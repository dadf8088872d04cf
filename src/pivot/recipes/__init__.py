"""Recipes: named starting configurations, one YAML file each.

`recipe: NAME` in a config file starts from that recipe; the other settings of the file override it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pivot.config.loading import overlay
from pivot.config.schema import sections
from pivot.config.sections import Config
from pivot.errors import UserError
from pivot.models.naming import TINY, resolve_model
from pivot.setting_names import RECIPES, check_recipe, load_file
from pivot.setting_names import recipe_names as names

NO_RECIPE = Config().recipe
NEW_SECTIONS = {"prompt"}
"""Sections that the config.json of an older run lacks."""

TINY_RECIPE, REAL_RECIPE = "tiny", "default"
SMALL_BYTES = 50 * 10**6
"""Weights of less than this are a tiny model's, which needs another learning rate than a real one."""

__all__ = ["for_model", "from_mapping", "get", "is_shipped", "names"]


def get(name: str) -> Config:
    """The recipe's configuration.

    Example:
        get("geo3k-7b").rollout.responses == 8
    """
    check_recipe(name)
    return replace(from_mapping(load_file(RECIPES / f"{name}.yaml")), recipe=name)


def is_shipped(model: str) -> bool:
    """Whether a model is one of the tiny ones that come with the package."""
    return model in TINY


def for_model(model: str | None) -> str:
    """The recipe to start from if none is named: `tiny` for tiny models, `default` for all others."""
    if model is None or is_shipped(model):
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
    whole = mapping.keys() >= dict(sections(Config())).keys() - NEW_SECTIONS
    own = name == NO_RECIPE or (name not in names() and whole)
    return overlay(Config() if own else get(name), mapping)
