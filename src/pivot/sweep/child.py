"""`python child.py PARENT COMMAND...`: replaces itself by a command that ends with its parent.

Linux sends SIGTERM to the command when its parent dies, however it dies, so that a training run saves its step and
stops. Run as a file, with the standard library alone, so that it starts quickly.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    parent, *command = argv
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(parent):
            sys.exit("the parent has ended already")
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
