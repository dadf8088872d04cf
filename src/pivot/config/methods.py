"""The method of a configuration: by name, from another package, with settings, and as a run's config.json stores it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pivot.config.coerce import coerce, parse
from pivot.config.schema import hints, method_fields
from pivot.errors import UserError, nearest
from pivot.method import PRESETS, Method, UnknownSetting, preset
from pivot.method.presets import MODULES
from pivot.method.settings import KNOWN_PARTS, switch_of
from pivot.plugins import absolute, find_object
from pivot.setting_names import check_method, unknown_setting


class Unparsed(str):
    """The right-hand side of `--set`, to be read by its field's type."""


def find_method(spec: str) -> Method:
    """The method of that name, with modules (`gspo+pivot`), or one from outside; a UserError names the nearest."""
    if ":" in spec:
        return replace(find_object(spec, "method", Method), source=absolute(spec))
    base, *modules = (spec,) if spec in PRESETS else spec.split("+")
    check_method(base, PRESETS)
    unknown = [module for module in modules if module not in MODULES]
    if unknown:
        raise UserError(f"There is no module {unknown[0]!r} of methods; {nearest(unknown[0], MODULES)}.")
    try:
        return preset(spec)
    except ValueError as cannot:
        raise UserError(f"Method {spec} is not possible: {cannot}.") from cannot


def settings_for(method: Method, settings: Iterable[str]) -> tuple[str, ...]:
    """Of settings that are meant for several methods, those that this one has."""
    own = method.own_settings()
    paths = ((setting, setting.partition("=")[0].strip()) for setting in settings)
    return tuple(s for s, path in paths if not path.startswith("method.") or path[len("method.") :] in own)


def method_to_dict(method: Method) -> dict[str, Any]:
    """Its names and every known setting, flat."""
    found: dict[str, Any] = {"name": method.name, "summary": method.summary}
    found |= {name: list(v) if isinstance(v, tuple) else v for name, v in method.settings().items()}
    return found | ({} if method.source is None else {"source": method.source})


def overlay_method(present: Method, given: Any, path: str) -> Method:
    """`pivot`, or `{name: pivot, beta: 0.3}`: the method of that name with these settings.

    Without a name the settings change the present method. A mapping with a summary is a stored method, as in a
    run's config.json: it names every setting, those of parts that are off too.
    """
    if isinstance(given, str):
        return find_method(given)
    if not isinstance(given, Mapping):
        raise UserError(f"{path} is {given!r}, but must be a method's name or a mapping of its fields.")
    names = {key: str(given[key]) for key in ("name", "summary", "source") if given.get(key) is not None}
    values = {key: value for key, value in given.items() if key not in ("name", "summary", "source")}
    spec = names.get("source", names.get("name"))
    is_stored = "summary" in names
    if spec is None:
        start = present
    elif is_stored and "source" not in names and spec not in PRESETS:
        start = Method(spec, names["summary"])
    else:
        start = find_method(spec)
    changes = _typed(start, values, path)
    try:
        if is_stored:
            return replace(start.restored(changes), **{k: v for k, v in names.items() if k != "source"})
        return start.with_settings(**changes)
    except UnknownSetting as error:
        raise UserError(_of_missing_part(error, path)) from error
    except ValueError as error:
        # The sentence starts with the setting's name.
        raise UserError(f"{path}.{error}.") from error


def _typed(method: Method, values: Mapping[str, Any], path: str) -> dict[str, Any]:
    known = {info.path: info.hint for _, found in method_fields(method) for info in found}
    typed: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            raise unknown_setting(str(key), [*method.own_settings(), "name"], f"{path}.")
        read = parse if isinstance(value, Unparsed) else coerce
        typed[key] = read(value, known[key], f"{path}.{key}")
    return typed


def _of_missing_part(error: UnknownSetting, path: str) -> str:
    part = next(part for part in KNOWN_PARTS if error.name in hints(part))
    return (
        f"Method {error.method.name} has no setting {path}.{error.name}, which belongs to a part that it lacks; "
        f"the nearest it has is {path}.{switch_of(part)}."
    )
