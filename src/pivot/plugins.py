"""Code from outside this package: the one place that decides what a name on the command line imports.

    package.module:name     from Python's path (installed packages and PYTHONPATH)
    path/to/file.py:name    from exactly that file

The current folder is never searched, and Python's path stays as it is: a file that imports its neighbours belongs to
a package on Python's path. Needs the standard library alone, so that a reward function's process starts quickly.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from pivot.errors import UserError, nearest

Kind = TypeVar("Kind")
FORMS = "package.module:name or path/to/file.py:name"


def find_object(spec: str, what: str, kind: type[Kind]) -> Kind:
    """The object that `spec` names; a UserError if there is none or it is of another kind.

    Example:
        find_object("my_package.my_module:careful", "method", Method)
    """
    source, name = _parts(spec, what)
    module = _imported(source, what)
    found = vars(module).get(name)
    if name not in vars(module):
        public = [n for n, value in vars(module).items() if isinstance(value, kind) and not n.startswith("_")]
        rest = nearest(name, public) if public else f"it holds no {what}"
        raise UserError(f"{source} has no {what} {name!r}; {rest}.")
    if not isinstance(found, kind):
        expected = "function" if kind is Callable else f"{kind.__module__}.{kind.__qualname__}"
        raise UserError(f"{spec} is of type {type(found).__name__}, but a {what} must be a {expected}.")
    return found


def find_function(spec: str, what: str) -> Callable[..., Any]:
    """The function that `spec` names."""
    return find_object(spec, what, Callable)  # pyright: ignore[reportArgumentType]


def import_plugins(specs: Iterable[str]) -> None:
    """Import modules (`package.module`) and files (`path/to/file.py`), so that they can register what they define."""
    for spec in specs:
        _imported(spec, "plugin")


def absolute(spec: str) -> str:
    """`file.py:name` with the file's absolute path, so that a run finds the same file again from any folder."""
    file, colon, name = spec.rpartition(":") if not spec.endswith(".py") else (spec, "", "")
    return f"{os.path.abspath(file)}{colon}{name}" if file.endswith(".py") else spec


def check_file(spec: str, what: str) -> None:
    """Raise a UserError if `file.py` or `file.py:name` names a file that is not there; modules are not looked for."""
    file = spec if spec.endswith(".py") else spec.rpartition(":")[0]
    if file.endswith(".py") and not Path(file).is_file():
        raise UserError(f"There is no file {os.path.abspath(file)} for the {what}.")


def _parts(spec: str, what: str) -> tuple[str, str]:
    source, _, name = spec.rpartition(":")
    if not source or not name.isidentifier():
        raise UserError(f"{spec!r} is not a {what}: write {FORMS}.")
    return source, name


def _imported(source: str, what: str) -> ModuleType:
    """The module of that name, or that file as a module."""
    try:
        if source.endswith(".py"):
            return _from_file(Path(source).absolute(), what)
        if not all(part.isidentifier() for part in source.split(".")):
            raise UserError(
                f"the {what} {source!r} is neither a module (package.module) nor a file (path/to/file.py)."
            )
        return importlib.import_module(source)
    except UserError:
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not f"{source}.".startswith(f"{error.name}."):
            raise _raised(source, error) from error
        raise UserError(
            f"There is no module {error.name!r} on Python's path for the {what} {source}{_hint(source)}."
        ) from error
    except (Exception, SystemExit) as error:  # importing runs the user's code
        raise _raised(source, error) from error


def _from_file(path: Path, what: str) -> ModuleType:
    # Two files of one name must not be one module; the same file is imported once per process.
    path = path.resolve()
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    check_file(str(path), what)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _hint(source: str) -> str:
    """A file of the current folder is not found by its module's name, which is a common mistake."""
    file = Path(*source.split(".")).with_suffix(".py")
    return (
        f"; to use the file in this folder, write {file}"
        if file.is_file()
        else "; install it or set PYTHONPATH"
    )


def _raised(source: str, error: BaseException) -> UserError:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    return UserError(f"importing {source} raised {type(error).__name__}: {error}{where}.")
