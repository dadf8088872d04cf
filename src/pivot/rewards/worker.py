"""The process of a user's reward function: `python -P -m pivot.rewards.worker SPEC`.

SPEC is `package.module:function` or `path/to/file.py:function` (`pivot.plugins`). The folder of such a file comes last
on the import path: it can import its neighbours, but none of them can shadow an installed module.

A frame is eight bytes of length and a body. Standard input carries calls, pickled by the trainer that started this
process; standard output carries JSON replies: `{"ready": true, "images": false}` once, then one per call
(`pivot.rewards.calling`). What the function prints goes to standard error. The process ends when its input ends or the
trainer dies. It uses the standard library only, so that a function without torch starts quickly.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import signal
import struct
import sys
from typing import Any

from pivot.errors import UserError
from pivot.plugins import find_function
from pivot.rewards.calling import Caller

LENGTH = struct.Struct(">Q")
_PR_SET_PDEATHSIG = 1


def main() -> None:
    die_with_parent()
    # Keep what the function itself reads and prints apart from the frames.
    calls, replies = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    spec = sys.argv[1]
    file = spec.rpartition(":")[0]
    if file.endswith(".py"):
        sys.path.append(os.path.dirname(os.path.abspath(file)))
    try:
        caller = Caller(find_function(spec, "reward function"))
    except UserError as problem:
        _send(replies, {"problem": str(problem)})
        return
    _send(replies, {"ready": True, "images": caller.signature.wants_images})
    with os.fdopen(calls, "rb") as stream:
        while head := stream.read(LENGTH.size):
            columns = pickle.loads(stream.read(*LENGTH.unpack(head)))
            _send(replies, caller.call(columns))


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
