"""A user's reward function in a process of its own: `python -P -m pivot.rewards.worker MODULE:FUNCTION FOLDER`.

The module is taken from FOLDER, where the run was started, or else from the import path. FOLDER itself comes last on
that path: the module may import its neighbours, but no file there takes the place of an installed one.

A frame is eight bytes of length and a body. On standard input come calls, pickled by the trainer that started this
process; on standard output go replies as JSON: `{"ready": true}` once, then for each call

    {"values": [1.0, 0.0]}   {"type": "NoneType"}   {"raised": "KeyError: 'x' (rewards.py, line 12)"}

What the function prints goes to standard error. The process ends with its input, and with the trainer. Standard
library only: a function that needs no torch does not wait for it.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import pickle
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from importlib.machinery import PathFinder
from typing import Any

LENGTH = struct.Struct(">Q")
_PR_SET_PDEATHSIG = 1


def main() -> None:
    die_with_parent()
    # The function's own input and output must not mix with the frames.
    calls, replies = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    function, problem = _find(*sys.argv[1:])
    if function is None:
        _send(replies, {"problem": problem})
        return
    _send(replies, {"ready": True})
    with os.fdopen(calls, "rb") as stream:
        while head := stream.read(LENGTH.size):
            columns = pickle.loads(stream.read(*LENGTH.unpack(head)))
            _send(replies, _call(function, columns))


def _call(function: Callable[..., Any], columns: dict[str, Any]) -> dict[str, Any]:
    try:
        values = function(**columns)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it raises is named, not swallowed
        last = traceback.extract_tb(error.__traceback__)[-1]
        return {"raised": f"{_sentence(error)} ({os.path.basename(last.filename)}, line {last.lineno})"}
    try:
        return {"values": [float(value) for value in values]}
    except (TypeError, ValueError):
        return {"type": type(values).__name__}


def _sentence(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _find(spec: str, folder: str) -> tuple[Callable[..., Any] | None, str]:
    """The function, or None and what is wrong."""
    module_name, _, name = spec.partition(":")
    try:
        _import_from(folder, module_name.partition(".")[0])
        module = importlib.import_module(module_name)
    except ImportError as cause:
        return None, f"cannot import {module_name!r} ({cause}); is it on the PYTHONPATH?"
    except (Exception, SystemExit) as cause:  # noqa: BLE001 - a module of the user's may raise anything
        return None, f"importing {module_name!r} raised {_sentence(cause)}"
    function = vars(module).get(name)
    if not callable(function):
        return None, f"{module_name!r} has no function {name!r}"
    return function, ""


def _import_from(folder: str, name: str) -> None:
    """Import a top-level module from this folder if it is there; one of Python's own cannot be replaced."""
    sys.path.append(folder)
    found = None if name in sys.stdlib_module_names else PathFinder.find_spec(name, [folder])
    if found is None or found.loader is None:
        return
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    found.loader.exec_module(module)


def _send(descriptor: int, message: dict[str, Any]) -> None:
    body = json.dumps(message).encode()
    rest = memoryview(LENGTH.pack(len(body)) + body)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def die_with_parent() -> None:
    """A function that never returns would never see that its input has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
