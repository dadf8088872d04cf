"""Converts a value from a file or the command line to the type of its field."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Literal, get_args, get_origin

import yaml

from pivot.config.schema import ONE_OR_MORE, describe_type, is_optional, without_none
from pivot.errors import UserError

NULLS = ("null", "none", "None", "~")
"""How `--set` spells None."""
AUTO = "auto"
"""Another spelling of None for numbers, which then follow from something else."""


def coerce(value: Any, hint: Any, path: str) -> Any:
    """`value` as an instance of `hint`; raises a UserError that names `path` if it is not one.

    Numbers may be written as text ("1e-6" is text to YAML 1.1), whole numbers as 3.0, tuples as lists.
    """
    plain = without_none(hint)
    if is_optional(hint) and (value is None or (value == AUTO and plain in (int, float))):
        return None
    if plain == ONE_OR_MORE:
        return _one_or_more(value, path)
    if get_origin(plain) is tuple:
        if not isinstance(value, list | tuple):
            raise _mismatch(value, hint, path)
        item = get_args(plain)[0]
        return tuple(coerce(member, item, f"{path}[{i}]") for i, member in enumerate(value))
    result = _choice(value, plain) if get_origin(plain) is Literal else _SCALARS[plain](value)
    if result is None:
        raise _mismatch(value, hint, path)
    return result


@lru_cache(maxsize=4096)  # plans read the same settings for hundreds of runs
def parse(text: str, hint: Any, path: str) -> Any:
    """The value in `--set path=text`. Text fields take it literally; other fields read it as YAML."""
    if is_optional(hint) and text in NULLS:
        return None
    plain = without_none(hint)
    if plain == ONE_OR_MORE:
        listed = text.lstrip().startswith("[") or "," in text
        return coerce(parse(text, tuple[str, ...], path) if listed else text, hint, path)
    if plain is str or get_origin(plain) is Literal:
        return coerce(text, hint, path)
    if get_origin(plain) is tuple and not text.lstrip().startswith("["):
        items = [item.strip() for item in text.split(",") if item.strip()]
        return tuple(parse(item, get_args(plain)[0], path) for item in items)
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise _mismatch(text, hint, path) from error
    return coerce(value, hint, path)


def _one_or_more(value: Any, path: str) -> str | tuple[str, ...]:
    """A list with one item stands for that item."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list | tuple):
        raise _mismatch(value, ONE_OR_MORE, path)
    found = coerce(value, tuple[str, ...], path)
    return found[0] if len(found) == 1 else found


def _mismatch(value: Any, hint: Any, path: str) -> UserError:
    return UserError(f"{path} is {value!r}, but must be {describe_type(hint)}.")


def _choice(value: Any, hint: Any) -> Any:
    """The choice that equals `value` or is spelled like it; None if there is none."""
    for choice in get_args(hint):
        if type(value) is type(choice) and value == choice:
            return choice
    return next((c for c in get_args(hint) if isinstance(value, str) and str(c) == value), None)


def _bool(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _int(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    number = _float(value)
    if number is None or not number.is_integer():
        return None
    # A plain int does not go through float, which could not hold a large one exactly.
    return value if isinstance(value, int) else int(number)


def _float(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _str(value: Any) -> str | None:
    return value if isinstance(value, str) else None


_SCALARS = {bool: _bool, int: _int, float: _float, str: _str}
