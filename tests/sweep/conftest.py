"""A sweep that runs its commands within the test's own process, and the modules beside it on the path."""

import contextlib
import io
import sys
from pathlib import Path

import pytest

from pivot.cli import main
from pivot.sweep.pool import Pool

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def commands(monkeypatch):
    """Run a sweep's commands here instead of in processes of their own; returns the list of those that ran."""
    ran: list[list[str]] = []

    def execute(self: Pool, words: list[str], log: Path, environment: dict[str, str], lock: int) -> int:
        ran.append(words)
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code = main(words)
        log.write_text(output.getvalue())
        return code

    monkeypatch.setattr(Pool, "execute", execute)
    return ran
