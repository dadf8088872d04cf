"""`python -m pivot.reproduce.worker PLAN WORK RESULTS CELL`: one cell in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from pivot.errors import UserError
from pivot.reproduce.plan import Cell, load_plan

STOPPED = 3
"""Exit code of a cell that a signal stopped and that goes on from its checkpoint."""
MISTAKE = 2


def main(argv: list[str]) -> int:
    plan_path, work, results, spec = argv
    _end_with_parent(os.getppid())
    from pivot.reproduce.cell import run_cell

    given = json.loads(spec)
    cell = Cell(given["world"], given["arm"], given["seed"], tuple(given["settings"]))
    try:
        finished = run_cell(load_plan(Path(plan_path)), cell, Path(work), Path(results))
    except UserError as mistake:
        print(mistake, file=sys.stderr)
        return MISTAKE
    return 0 if finished else STOPPED


def _end_with_parent(parent: int) -> None:
    """A cell whose scheduler was killed stops as if by SIGTERM: the step is finished and saved."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
