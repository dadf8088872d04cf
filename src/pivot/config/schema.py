"""The fields of a configuration: dotted path, type, default and the docstring under each.

All of it follows from the dataclasses of `sections` and the parts of `pivot.method`.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pivot.method import Method
from pivot.method.settings import KNOWN_PARTS, Switches

ONE_OR_MORE = str | tuple[str, ...]
"""The type of a field that holds a text or a list of them."""


@dataclass(frozen=True)
class FieldInfo:
    """One setting.

    Example:
        FieldInfo(path="train.lr", hint=float, value=1e-06, section=TrainConfig)
    """

    path: str
    hint: Any
    value: Any
    section: type

    @property
    def doc(self) -> str:
        """The docstring under the field; read only when someone asks, since that takes a while."""
        return field_docs(self.section)[self.path.rpartition(".")[2]]


@cache
def hints(section: type) -> dict[str, Any]:
    """Field -> its resolved type, in the order of the class."""
    resolved = get_type_hints(section)
    return {field.name: resolved[field.name] for field in fields(section)}


@cache
def field_docs(section: type) -> dict[str, str]:
    """Field -> the docstring under it, on one line; "" where there is none."""
    docs = dict.fromkeys(hints(section), "")
    for base in [base for base in reversed(section.__mro__) if is_dataclass(base)]:
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, following in zip(body.body, body.body[1:], strict=False):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                docs[statement.target.id] = _string(following)
    return {name: docs[name] for name in hints(section)}


def _string(statement: ast.stmt) -> str:
    """The text of a bare string statement, else ""."""
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return " ".join(text.split())
        case _:
            return ""


def section_doc(section: type) -> str:
    """First line of the section's docstring."""
    return (inspect.getdoc(section) or "").split("\n", 1)[0]


def sections(config: Any) -> Iterator[tuple[str, Any]]:
    """Name and value of every section, in order."""
    for name in hints(type(config)):
        value = getattr(config, name)
        if is_dataclass(value):
            yield name, value


def all_fields(config: Any, prefix: str = "") -> Iterator[FieldInfo]:
    """Every leaf below `config` with its present value, depth first; of a method, every known setting."""
    if isinstance(config, Method):
        for name in ("name", "summary"):
            yield FieldInfo(prefix + name, str, getattr(config, name), Method)
        for _, found in method_fields(config, prefix):
            yield from found
        return
    for name, hint in hints(type(config)).items():
        value = getattr(config, name)
        if is_dataclass(hint):
            yield from all_fields(value, f"{prefix}{name}.")
        else:
            yield FieldInfo(prefix + name, hint, value, type(config))


def method_fields(method: Method, prefix: str = "") -> Iterator[tuple[type, list[FieldInfo]]]:
    """The settings of a method, part by part: its own parts, and every known one that it lacks, as switched off."""
    values = method.settings()
    parts = dict.fromkeys((Switches, *KNOWN_PARTS, *(type(part) for part in method.parts())))
    seen: set[str] = set()
    for part in parts:
        new = {name: hint for name, hint in hints(part).items() if name not in seen}
        seen |= new.keys()
        if new:
            yield part, [FieldInfo(prefix + n, hint, values[n], part) for n, hint in new.items()]


def is_optional(hint: Any) -> bool:
    """Whether the type allows None."""
    return get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint)


def without_none(hint: Any) -> Any:
    """X of `X | None`; any other type unchanged."""
    if not is_optional(hint):
        return hint
    remaining = [member for member in get_args(hint) if member is not NoneType]
    assert len(remaining) == 1, f"a field of type {hint} is not supported"
    return remaining[0]


def describe_type(hint: Any) -> str:
    """The type in words: `a number or null`, `one of patch, grey, gaussian`."""
    if is_optional(hint):
        return f"{describe_type(without_none(hint))} or null"
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(str(choice) for choice in get_args(hint))
    if hint == ONE_OR_MORE:
        return "text or a list of texts"
    if get_origin(hint) is tuple:
        return f"a list, each item {describe_type(get_args(hint)[0])}"
    return {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[hint]


def short_type(hint: Any) -> str:
    """The type in short: `int | null`, `patch | grey | gaussian`, `list of str`."""
    if is_optional(hint):
        return f"{short_type(without_none(hint))} | null"
    if get_origin(hint) is Literal:
        return " | ".join(str(choice) for choice in get_args(hint))
    if hint == ONE_OR_MORE:
        return "str | list of str"
    if get_origin(hint) is tuple:
        return f"list of {short_type(get_args(hint)[0])}"
    return hint.__name__
