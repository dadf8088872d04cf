"""Mistakes that are reported before anything heavy is imported: unknown names, missing files.

A command has `check(args)` for this; it uses the standard library, YAML and, where data is named, `pivot.data`. What
passes here is checked again, and further, when the configuration is made.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from pivot.models.naming import resolve_model
from pivot.plugins import check_file
from pivot.setting_names import (
    check_method,
    check_recipe,
    check_setting,
    load_file,
    method_names,
    paths_in,
    split_setting,
)


def last_value(settings: Iterable[str], path: str) -> str | None:
    """The value of the last `path=value`."""
    found = [value.strip() for name, _, value in (s.partition("=") for s in settings) if name.strip() == path]
    return found[-1] if found else None


def check_configuration(args: argparse.Namespace) -> None:
    """The options of `options.add_arguments`."""
    for plugin in args.plugins or ():
        check_file(plugin, "plugin")
    mapping = {} if args.config is None else load_file(args.config)
    method = last_value(args.settings, "method") or args.method
    # A method from outside, or one that a plugin registers, is known when it has been imported.
    outside = bool(args.plugins or mapping.get("plugins") or ":" in str(method or mapping.get("method")))
    check_settings([*(split_setting(one)[0] for one in args.settings), *paths_in(mapping)], outside=outside)
    if args.recipe is not None:
        check_recipe(args.recipe)
    if method is not None and ":" in method:
        check_file(method, "method")
    elif method is not None and not outside:
        check_method(method.partition("+")[0], method_names())  # METHOD+MODULE adds a module


def check_settings(paths: Iterable[str], *, outside: bool = False) -> None:
    """Settings by name; with a method from outside, `method.FIELD` is left to it."""
    for path in paths:
        check_setting(path, own_method=outside)


def check_data(names: str | None, path: str | None) -> None:
    """Check that files exist and that other names may be data sets; `names` may be a list, `path` is `data.path`."""
    if names is None and path is None:
        return
    from pivot.data.registry import looks_like_path
    from pivot.data.sources import require

    for name in [path] if path is not None else (names or "").strip("[] ").split(","):
        name = name.strip("'\" ")
        if looks_like_path(name) and ".py:" not in name:
            require(Path(name).expanduser())


def check_evaluation(args: argparse.Namespace, models: Iterable[str]) -> None:
    """The options of `options.add_model_settings` and `add_data_settings`, and the models."""
    for plugin in args.plugins or ():
        check_file(plugin, "plugin")
    if args.recipe is not None:
        check_recipe(args.recipe)
    check_settings(split_setting(one)[0] for one in args.settings)
    for name in models:
        resolve_model(name)
    check_data(None, last_value(args.settings, "data.path"))
