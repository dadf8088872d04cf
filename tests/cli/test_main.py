"""The command line itself: usage of the command at hand, interrupts during import, widths, and named extras."""

import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from pivot.cli import main
from pivot.doctor.machine import EXTRAS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("argv", "usage"),
    [
        (["methods", "--bogus"], "usage: pivot methods"),
        (["benchmarks", "extra"], "usage: pivot benchmarks"),
        (["grade", "--jsonn"], "usage: pivot grade"),
        (["--bogus"], "usage: pivot [-h]"),
        (["nothing"], "usage: pivot [-h]"),
    ],
)
def test_usage_errors_show_the_commands_own_usage(argv, usage, capsys):
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(usage)


def test_an_interrupt_during_imports_is_one_sentence():
    code = "from pivot.cli import main; print('up', flush=True); raise SystemExit(main(['train', '--quiet']))"
    for delay in (0.05, 0.4, 1.0):
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay)
        os.kill(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=60)
        assert (process.returncode, error) == (130, "pivot train: interrupted\n"), delay


def test_benchmarks_fit_the_terminal(monkeypatch, capsys):
    for columns in (60, 80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert main(["benchmarks"]) == 0
        widest = max(map(len, capsys.readouterr().out.splitlines()))
        assert min(columns, 100) - 20 < widest < min(columns, 100)


def test_every_extra_that_a_message_or_page_names_exists():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"])
    named = set()
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    for path in files:
        for match in re.findall(r"(?:pivot-rl|pip install '?\.|`\.)\[([\w,{}]+)\]", path.read_text("utf-8")):
            named |= {name for name in match.split(",") if "{" not in name}
    assert named
    assert named <= extras, named - extras
    assert set(EXTRAS) <= extras
    for extra, distributions in EXTRAS.items():
        listed = [
            re.split(r"[<>=]", requirement)[0] for requirement in project["optional-dependencies"][extra]
        ]
        assert listed == list(distributions)
