"""The process of a user's reward function: `python -P -m pivot.rewards.worker MODULE:FUNCTION FOLDER`.

The module is imported from FOLDER, where the run was started, or else from the import path. FOLDER itself is last on
that path: the module can import its neighbours, but no file in FOLDER can shadow an installed module.

A frame is eight bytes of length and a body. Standard input carries calls, pickled by the trainer that started this
process; standard output carries JSON replies: `{"ready": true}` once, then one per call

    {"values": [1.0, 0.0]}   {"type": "NoneType"}   {"raised": "KeyError: 'x' (rewards.py, line 12)"}

What the function prints goes to standard error. The process ends when its input ends or the trainer dies. It uses
the standard library only, so that a function without torch starts quickly.
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

from pivot.errors import UserError
from pivot.plugins import find_function

LENGTH = struct.Struct(">Q")
_PR_SET_PDEATHSIG = 1


def main() -> None:
    die_with_parent()
    # Keep what the function itself reads and prints apart from the frames.
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
    except (Exception, SystemExit) as error:  # noqa: BLE001 - reported to the trainer, not swallowed
        last = traceback.extract_tb(error.__traceback__)[-1]
        return {"raised": f"{_sentence(error)} ({os.path.basename(last.filename)}, line {last.lineno})"}
    try:
        return {"values": [float(value) for value in values]}
    except (TypeError, ValueError):
        return {"type": type(values).__name__}


def _sentence(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _find(spec: str, folder: str) -> tuple[Callable[..., Any] | None, str]:
    """The function, or None and the problem."""
    module_name, _, name = spec.rpartition(":")
    if module_name.endswith(".py"):
        try:
            return find_function(spec, "reward function"), ""
        except UserError as mistake:
            return None, str(mistake)
    try:
        _import_from(folder, module_name.partition(".")[0])
        module = importlib.import_module(module_name)
    except ImportError as cause:
        return None, f"cannot import {module_name!r} ({cause}); is it on the PYTHONPATH?"
    except (Exception, SystemExit) as cause:  # noqa: BLE001 - a user's module may raise anything
        return None, f"importing {module_name!r} raised {_sentence(cause)}"
    function = vars(module).get(name)
    if not callable(function):
        return None, f"{module_name!r} has no function {name!r}"
    return function, ""


def _import_from(folder: str, name: str) -> None:
    """Import a top-level module from this folder if it exists there; standard library modules are never shadowed."""
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
    """Have the kernel kill this process with its parent; a function that hangs never sees its input end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
