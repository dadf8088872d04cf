"""The library's process: `python -P -m pivot.rewards.verifier.worker LIBRARY CPU_SECONDS WALL_SECONDS MEGABYTES`.

Jobs and replies are JSON lines on standard input and output, one job at a time:

    {"id": 7, "given": "\\\\sin 30^\\\\circ", "answer": "\\\\frac{1}{2}"}   ->   {"id": 7, "equal": true}

The process imports the library once and forks a child that runs the jobs, with a memory limit and two kernel alarms:
one on processor time, so that a busy machine changes few rewards, and one on wall-clock time. When a child dies, the
parent sends `{"died": "timed out"}` or `{"died": "crashed"}` and forks a new one within milliseconds. Both exit when
their input ends. Neither imports torch. `-P` keeps files in the working directory from being imported.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable

from .library import load_math_verify

JOBS_PER_CHILD = 2_000
"""After this many jobs a new child takes over, which bounds the growth of the library's caches."""
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
"""What the libraries raise on text they cannot parse; any other exception ends the child."""
_WARM_UP = ("\\sqrt{2+\\sqrt{3}}", "\\frac{\\sqrt{6}+\\sqrt{2}}{2}")

Agree = Callable[[str, str], bool]
"""(given, answer) -> whether they are equal."""


def main() -> None:
    library, cpu_seconds, wall_seconds, megabytes = sys.argv[1:]
    agree = LIBRARIES[library]()
    agree(*_WARM_UP)  # Children inherit the caches that the first comparison fills.
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


def _mathruler() -> Agree:
    from mathruler.grader import grade_answer

    return grade_answer


LIBRARIES: dict[str, Callable[[], Agree]] = {"math-verify": load_math_verify, "mathruler": _mathruler}
"""Library -> the function that imports it; a worker process uses one."""


def _serve(agree: Agree, cpu_seconds: float, wall_seconds: float) -> int:
    """Run jobs until the input ends (returns 0) or `JOBS_PER_CHILD` are done."""
    for alarm in _ALARMS:
        signal.signal(alarm, signal.SIG_DFL)
    for _ in range(JOBS_PER_CHILD):
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
    """Set the two timers that kill the process; 0 disarms them."""
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    signal.setitimer(signal.ITIMER_REAL, wall_seconds)


def _confine(megabytes: int) -> None:
    """Limit the address space, forbid file writes and core dumps, and silence the library's warnings."""
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
