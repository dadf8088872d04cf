"""Configurations from and to plain mappings, files and `--set a.b=c`.

All of them become a nested mapping that is applied to an existing configuration, section by section.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from pivot.config.coerce import NULLS, coerce, parse
from pivot.config.methods import Unparsed, method_to_dict, overlay_method
from pivot.config.schema import describe_type, hints
from pivot.config.sections import Config
from pivot.data.template import read_template
from pivot.errors import UserError
from pivot.method import Method
from pivot.plugins import absolute, import_plugins
from pivot.setting_names import FORMER, split_setting, unknown_setting

Section = TypeVar("Section")
READ_ON_LOADING: dict[str, Callable[[Any], Any]] = {
    "plugins": lambda given: tuple(map(absolute, given)),
    "corruption.kind": absolute,
    "prompt.template": lambda given: None if given is None else read_template(given),
    "reward.functions": lambda given: tuple(map(absolute, given)),
}
"""Settings that name a file: its text, or its absolute path, so that a run can be resumed from any folder."""


def to_dict(config: Any) -> dict[str, Any]:
    """Nested mappings of JSON types; `from_dict` restores an equal configuration."""
    return {field.name: _plain(getattr(config, field.name)) for field in fields(config)}


def _plain(value: Any) -> Any:
    if isinstance(value, Method):
        return method_to_dict(value)
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
    if isinstance(config, Config) and "plugins" in mapping:
        # First: they may register the method or model family that other settings name.
        import_plugins(coerce(mapping["plugins"], known["plugins"], "plugins"))
    changes: dict[str, Any] = {}
    for key, value in mapping.items():
        path = f"{prefix}{key}"
        if path in FORMER:
            key, value = FORMER[path], [] if value is None else [value]
            path = f"{prefix}{key}"
        if key not in known:
            raise unknown_setting(str(key), known, prefix)
        changes[key] = _value(getattr(config, key), value, known[key], path)
        if path in READ_ON_LOADING:
            changes[key] = READ_ON_LOADING[path](changes[key])
    try:
        return replace(config, **changes)  # pyright: ignore[reportArgumentType]
    except ValueError as error:
        # Raised by a section's own check; the message starts with the field's name.
        raise UserError(f"{prefix}{error}.") from error


def _value(present: Any, given: Any, hint: Any, path: str) -> Any:
    if hint is Method:
        return overlay_method(present, given, path)
    if not is_dataclass(hint):
        return coerce(given, hint, path)
    if not isinstance(given, Mapping):
        raise UserError(f"{path} is {given!r}, but it is a section; give {path}.FIELD = value.")
    return overlay(present, given, f"{path}.")


def apply_settings(config: Config, settings: Iterable[str]) -> Config:
    """`config` changed by `section.field=value` settings; of two for one field the last counts.

    Example:
        apply_settings(config, ["train.lr=2e-6", "method.beta=0.3", "eval.sets=test,ood"])
    """
    mapping: dict[str, Any] = {}
    for setting in settings:
        _place(mapping, *split_setting(setting))
    choose_duration(mapping.get("train", {}))
    return overlay(config, mapping)


def choose_duration(train: dict[str, Any]) -> None:
    """Steps that are set replace epochs from an earlier source; both at once contradict each other."""
    if train.get("steps") is not None and train.get("epochs") is not None:
        raise UserError(
            f"train.steps={train['steps']} and train.epochs={train['epochs']} are both set; give only one of them."
        )
    if "steps" in train:
        train.setdefault("epochs", None)


def _place(mapping: dict[str, Any], path: str, text: str) -> None:
    """Parse one setting by the type of its field and put it into the nested mapping."""
    *parents, name = path.split(".")
    if path in FORMER:
        mapping.setdefault(parents[0], {})[name] = None if text in NULLS else text
        return
    section: type = Config
    for depth, parent in enumerate(parents):
        hint = _hint(section, parent, ".".join(parents[:depth]))
        if not is_dataclass(hint):
            where = ".".join(parents[: depth + 1])
            raise UserError(f"{where} is {describe_type(hint)} and has no fields, so {path} cannot be set.")
        assert isinstance(hint, type)
        section = hint
        mapping = mapping.setdefault(parent, {})
        if section is Method:
            # Which settings there are, and of which type, is known when all settings have named the method.
            mapping[".".join([*parents[depth + 1 :], name])] = Unparsed(text)
            return
    hint = _hint(section, name, ".".join(parents))
    if hint is Method:
        # `method=dapo` starts over from that method: earlier settings of it are dropped.
        mapping[name] = {"name": text}
    elif is_dataclass(hint):
        raise UserError(f"{path} is a section, not a field: set one of its fields, {path}.FIELD={text}.")
    else:
        mapping[name] = parse(text, hint, path)


def _hint(section: type, name: str, where: str) -> Any:
    known = hints(section)
    if name not in known:
        raise unknown_setting(name, known, f"{where}." if where else "")
    return known[name]
