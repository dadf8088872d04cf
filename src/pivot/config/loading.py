"""Configurations from and to plain mappings, files and `--set a.b=c`.

All of them become a nested mapping that is applied to an existing configuration, section by section.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import yaml

from pivot.config.coerce import coerce, parse
from pivot.config.schema import all_fields, describe_type, hints
from pivot.config.sections import Config
from pivot.errors import UserError
from pivot.method import PRESETS, Method

Section = TypeVar("Section")


def to_dict(config: Any) -> dict[str, Any]:
    """Nested mappings of JSON types; `from_dict` restores an equal configuration."""
    return {field.name: _plain(getattr(config, field.name)) for field in fields(config)}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return to_dict(value)
    return list(value) if isinstance(value, tuple) else value


def from_dict(mapping: Mapping[str, Any]) -> Config:
    """The defaults, changed by `mapping`."""
    return overlay(Config(), mapping)


def overlay(config: Section, mapping: Mapping[str, Any], prefix: str = "") -> Section:
    """`config` with the values of a nested mapping; all other values stay.

    Raises:
        UserError: an unknown key (names the nearest known one), or a value of the wrong type.
    """
    known = hints(type(config))
    changes: dict[str, Any] = {}
    for key, value in mapping.items():
        path = f"{prefix}{key}"
        if key not in known:
            raise _unknown(str(key), known, prefix)
        changes[key] = _value(getattr(config, key), value, known[key], path)
    try:
        return replace(config, **changes)  # pyright: ignore[reportArgumentType]
    except ValueError as error:
        # Raised by a section's own check; the message starts with the field's name.
        raise UserError(f"{prefix}{error}.") from error


def _value(present: Any, given: Any, hint: Any, path: str) -> Any:
    if hint is Method:
        return _method(present, given, path)
    if not is_dataclass(hint):
        return coerce(given, hint, path)
    if not isinstance(given, Mapping):
        raise UserError(f"{path} is {given!r}, but it is a section; give {path}.FIELD = value.")
    return overlay(present, given, f"{path}.")


def _method(present: Method, given: Any, path: str) -> Method:
    """`pivot`, or `{name: pivot, beta: 0.3}`: the preset of that name, then the other fields.

    Without a name the fields change the method that is there. A name that is no preset is taken only from
    a mapping that gives every field, as a run's config.json does for a method made in Python.
    """
    if isinstance(given, str):
        return preset(given)
    if not isinstance(given, Mapping):
        raise UserError(f"{path} is {given!r}, but must be a method's name or a mapping of its fields.")
    complete = given.keys() >= hints(Method).keys()
    name = given.get("name")
    start = present if name is None or complete else preset(str(name))
    return overlay(start, given, f"{path}.")


def preset(name: str) -> Method:
    """The method of that name; a UserError names the nearest one there is."""
    if name not in PRESETS:
        raise UserError(f"There is no method {name!r}; {nearest(name, PRESETS)}.")
    return PRESETS[name]


def apply_settings(config: Config, settings: Iterable[str]) -> Config:
    """`config` changed by `section.field=value` settings; of two for one field the last counts.

    Example:
        apply_settings(config, ["train.lr=2e-6", "method.beta=0.3", "eval.sets=test,ood"])
    """
    mapping: dict[str, Any] = {}
    for setting in settings:
        path, equals, text = (part.strip() for part in setting.partition("="))
        if not equals or not path:
            raise UserError(f"--set takes section.field=value, for example train.lr=2e-6, not {setting!r}.")
        _place(mapping, path, text)
    return overlay(config, mapping)


def _place(mapping: dict[str, Any], path: str, text: str) -> None:
    """Parse one setting by the type of its field and put it into the nested mapping."""
    *parents, name = path.split(".")
    section: type = Config
    for depth, parent in enumerate(parents):
        hint = _hint(section, parent, ".".join(parents[:depth]))
        if not is_dataclass(hint):
            where = ".".join(parents[: depth + 1])
            raise UserError(f"{where} is {describe_type(hint)} and has no fields, so {path} cannot be set.")
        assert isinstance(hint, type)
        section = hint
        mapping = mapping.setdefault(parent, {})
    hint = _hint(section, name, ".".join(parents))
    if hint is Method:
        preset(text)
        # `method=dapo` starts over from a preset: earlier settings of the method are dropped.
        mapping[name] = {"name": text}
    elif is_dataclass(hint):
        raise UserError(f"{path} is a section, not a field: set one of its fields, {path}.FIELD={text}.")
    else:
        mapping[name] = parse(text, hint, path)


def _hint(section: type, name: str, where: str) -> Any:
    known = hints(section)
    if name not in known:
        raise _unknown(name, known, f"{where}." if where else "")
    return known[name]


def load_file(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML, TOML or JSON file, told apart by the file's suffix."""
    path = Path(path)
    readers = {".yaml": yaml.safe_load, ".yml": yaml.safe_load, ".toml": tomllib.loads, ".json": json.loads}
    if path.suffix not in readers:
        raise UserError(f"The config file {path} must end in .yaml, .yml, .toml or .json.")
    try:
        content = readers[path.suffix](path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"The config file {path} cannot be read: {error.strerror}.") from error
    except (ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"The config file {path} is not valid {path.suffix[1:].upper()}: {reason}."
        ) from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(
            f"The config file {path} must hold sections with fields, not {type(content).__name__}."
        )
    return content


def _unknown(key: str, known: Mapping[str, Any], prefix: str) -> UserError:
    """Suggests the nearest key of the section, else a setting with that name or with those words in its description."""
    if not difflib.get_close_matches(key, known, n=1, cutoff=0.8):
        words = key.replace("_", " ").lower()
        everything = list(all_fields(Config()))
        same_name = [info.path for info in everything if info.path.rpartition(".")[2] == key]
        same_words = [info.path for info in everything if len(words) > 3 and words in info.doc.lower()]
        for path in (*same_name, *same_words):
            return UserError(f"There is no setting {prefix}{key}; the nearest is {path}.")
    return UserError(f"There is no setting {prefix}{key}; {nearest(key, known, prefix)}.")


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """`the nearest is train.lr`, or all known names if none is near."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    if close:
        return f"the nearest is {prefix}{close[0]}"
    return "there are " + ", ".join(f"{prefix}{word}" for word in known)
