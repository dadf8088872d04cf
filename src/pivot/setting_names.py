"""Recipes, methods and settings by name, read from the files of this package.

Nothing is imported, so that a mistyped name is reported before torch is loaded. `tests/test_setting_names.py` compares
these names with those of the configuration.
"""

from __future__ import annotations

import ast
import difflib
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from pivot.errors import UserError, nearest

PACKAGE = Path(__file__).parent
RECIPES = PACKAGE / "recipes"
FORMER = {"reward.function": "functions"}
"""A setting of older versions, which took one value -> the list that took its place."""


def recipe_names() -> list[str]:
    """All recipes: those of the tiny model first, then the paper's."""
    names = (path.stem for path in RECIPES.glob("*.yaml"))
    return sorted(names, key=lambda name: (not name.startswith("tiny"), name))


def check_recipe(name: str) -> None:
    """Raise a UserError that names the nearest recipe if there is none of this name."""
    if name not in recipe_names():
        raise UserError(f"There is no recipe {name!r}; {nearest(name, recipe_names())}.")


def check_method(name: str, known: Iterable[str]) -> None:
    """The same for a method of this package."""
    known = list(known)
    if name not in known:
        raise UserError(f"There is no method {name!r}; {nearest(name, known)}.")


@cache
def method_names() -> list[str]:
    """The names in `Method("name", ...)` and `replace(..., name="name")`."""
    calls = [node for tree in _method_files() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = [word.value for call in calls for word in call.keywords if word.arg == "name"]
    made = [call.args[0] for call in calls if ast.unparse(call.func) == "Method" and call.args]
    return [str(node.value) for node in (*made, *named) if isinstance(node, ast.Constant)]


@cache
def setting_docs() -> dict[str, dict[str, str]]:
    """Section -> its fields with the docstring under each; "" holds the sections themselves."""
    classes = {node.name: node for node in _classes(PACKAGE / "config" / "sections.py")}
    found = {"": _fields(classes["Config"])}
    for name, kind in _annotations(classes["Config"]).items():
        if kind in classes:
            found[name] = _fields(classes[kind])
        elif kind == "Method":
            found[name] = {"name": "", **_method_fields()}
    return found


def check_setting(path: str, *, own_method: bool = False) -> None:
    """Raise a UserError that names the nearest setting if there is none of this name.

    Args:
        own_method: whether the method may come from outside, with settings that are not known here.
    """
    section, *rest = path.split(".")
    known = setting_docs()
    if section not in known[""]:
        raise unknown_setting(section, known[""], "")
    if len(rest) != 1 or path in FORMER or section not in known or (section == "method" and own_method):
        return
    if rest[0] not in known[section]:
        raise unknown_setting(rest[0], known[section], f"{section}.")


def unknown_setting(key: str, known: Iterable[str], prefix: str) -> UserError:
    """Names the nearest key of the section, else a setting of that name or with those words in its doc."""
    known = list(known)
    if not difflib.get_close_matches(key, known, n=1, cutoff=0.8):
        words = key.replace("_", " ").lower()
        every = [
            (f"{section}.{name}", name, doc)
            for section, docs in setting_docs().items()
            for name, doc in docs.items()
            if section
        ]
        same_name = [path for path, name, _ in every if name == key]
        same_words = [path for path, _, doc in every if len(words) > 3 and words in doc.lower()]
        for path in (*same_name, *same_words):
            return UserError(f"There is no setting {prefix}{key}; the nearest is {path}.")
    return UserError(f"There is no setting {prefix}{key}; {nearest(key, known, prefix)}.")


def split_setting(setting: str) -> tuple[str, str]:
    """`section.field=value` -> its two sides."""
    path, equals, text = (part.strip() for part in setting.partition("="))
    if not equals or not path:
        raise UserError(f"--set takes section.field=value, for example train.lr=2e-6, not {setting!r}.")
    return path, text


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


def paths_in(mapping: Mapping[str, Any]) -> Iterator[str]:
    """The settings that a file's mapping names."""
    for section, value in mapping.items():
        yield from (f"{section}.{name}" for name in value) if isinstance(value, Mapping) else (str(section),)


def _method_fields() -> dict[str, str]:
    """The fields of every subclass of `Part`; the docs of `Switches` count where a part has a switch as a field."""
    classes = [node for tree in _method_files() for node in tree.body if isinstance(node, ast.ClassDef)]
    parts, found = {"Part"}, dict[str, str]()
    while new := [c for c in classes if c.name not in parts and parts & {ast.unparse(b) for b in c.bases}]:
        parts |= {node.name for node in new}
        for node in new:
            found = {**_fields(node), **found}
    return found | _fields(next(node for node in classes if node.name == "Switches"))


@cache
def _method_files() -> list[ast.Module]:
    return [_parsed(path) for path in sorted((PACKAGE / "method").glob("*.py"))]


def _classes(path: Path) -> list[ast.ClassDef]:
    return [node for node in _parsed(path).body if isinstance(node, ast.ClassDef)]


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _annotations(node: ast.ClassDef) -> dict[str, str]:
    """Field -> its type as written."""
    return {
        statement.target.id: ast.unparse(statement.annotation)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }


def _fields(node: ast.ClassDef) -> dict[str, str]:
    """Field -> the docstring under it, on one line; "" where there is none."""
    docs = {name: "" for name, kind in _annotations(node).items() if not kind.startswith("ClassVar")}
    for statement, following in zip(node.body, node.body[1:], strict=False):
        match statement, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                if name in docs:
                    docs[name] = " ".join(text.split())
            case _:
                pass
    return docs
