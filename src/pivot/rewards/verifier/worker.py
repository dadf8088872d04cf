"""The library's process: `python -P -m pivot.rewards.verifier.worker LIBRARY CPU_SECONDS WALL_SECONDS MEGABYTES`.

Jobs and replies are JSON lines on standard input and output, one job at a time:

    {"id": 7, "given": "\\\\sin 30^\\\\circ", "answer": "\\\\frac{1}{2}"}   ->   {"id": 7, "equal": true}

The process that is started imports the library once and never looks at a job. It forks a child that does,
under a memory limit and with alarms that the kernel enforces, whatever the child is computing: one by
processor time, so that a busy machine changes few rewards, and one by the clock. A child that dies is
announced with `{"died": "timed out"}` or `{"died": "crashed"}` and replaced within milliseconds. Both end
when their input does. Neither imports torch, and the trainer itself is never forked. `-P` keeps files in the
working directory from being imported.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable

JOBS_A_CHILD = 2_000
"""Then a fresh child takes over, so that the library's caches cannot grow for days."""
_ALARMS = (signal.SIGALRM, signal.SIGPROF)
_RETIRED = 3
_LIBRARY_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What libraries raise on text that they cannot read; anything else ends the child."""
_WARM_UP = ("\\sqrt{2+\\sqrt{3}}", "\\frac{\\sqrt{6}+\\sqrt{2}}{2}")

Agree = Callable[[str, str], bool]
"""(given, answer) -> whether they are the same."""


def main() -> None:
    library, cpu_seconds, wall_seconds, megabytes = sys.argv[1:]
    agree = LIBRARIES[library]()
    agree(*_WARM_UP)  # Every child inherits what the library builds at its first question.
    _send({"ready": True})
    while True:
        child = os.fork()
        if child == 0:
            _confine(int(megabytes))
            os._exit(_serve(agree, float(cpu_seconds), float(wall_seconds)))
        _, status = os.waitpid(child, 0)
        if status == 0:
            return
        if os.WIFSIGNALED(status):
            _send({"died": "timed out" if os.WTERMSIG(status) in _ALARMS else "crashed"})
        elif os.WEXITSTATUS(status) != _RETIRED:
            _send({"died": "crashed"})


def _math_verify() -> Agree:
    from .symbolic import load

    return load()


def _mathruler() -> Agree:
    from mathruler.grader import grade_answer

    return grade_answer


LIBRARIES: dict[str, Callable[[], Agree]] = {"math-verify": _math_verify, "mathruler": _mathruler}
"""Library -> what imports it; a worker holds one of them."""


def _serve(agree: Agree, cpu_seconds: float, wall_seconds: float) -> int:
    """Answer jobs until the input ends (0) or the child has had its share of them."""
    for alarm in _ALARMS:
        signal.signal(alarm, signal.SIG_DFL)
    for _ in range(JOBS_A_CHILD):
        line = sys.stdin.buffer.readline()
        if not line:
            return 0
        job = json.loads(line.decode("utf-8", "surrogatepass"))
        _set_alarms(cpu_seconds, wall_seconds)
        try:
            reply = {"id": job["id"], "equal": bool(agree(job["given"], job["answer"]))}
        except _LIBRARY_ERRORS:
            reply = {"id": job["id"], "equal": None}
        _set_alarms(0, 0)
        _send(reply)
    return _RETIRED


def _set_alarms(cpu_seconds: float, wall_seconds: float) -> None:
    """Both kill the process unless they are set to 0 in time."""
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    signal.setitimer(signal.ITIMER_REAL, wall_seconds)


def _confine(megabytes: int) -> None:
    """Bound the address space, forbid writing files and core dumps, and silence the library's warnings."""
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def _send(message: dict[str, object]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
