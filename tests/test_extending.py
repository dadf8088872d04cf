"""docs/extending.md: its files, in a folder outside the package, and its commands, run there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import pivot

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))
ROWS = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)[0]
COMMANDS = re.findall(r"^\$ ((?:PYTHONPATH=\. )?pivot .*)$", PAGE, re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """What a reader of the page has after copying its files."""
    folder = tmp_path_factory.mktemp("mine")
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "stripes.jsonl").write_text(ROWS, encoding="utf-8")
    for row in map(json.loads, ROWS.splitlines()):
        image = Image.new("RGB", (84, 84), "white")
        for stripe in range(int(row["truth"])):
            image.paste("black", (8 + 14 * stripe, 8, 14 + 14 * stripe, 76))
        image.save(folder / row["pic"])
    return folder


def run(folder: Path, command: str) -> str:
    on_path = "PYTHONPATH=. " in command
    words = command.removeprefix("PYTHONPATH=. ").split()
    source = str(Path(pivot.__file__).parents[1])
    path = os.pathsep.join([str(folder), source]) if on_path else source
    done = subprocess.run(
        [sys.executable, "-P", "-m", *words],
        cwd=folder, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_has_an_example_of_everything_that_can_live_outside():
    assert set(FILES) == {"my_method.py", "my_corruption.py", "my_reward.py", "my_benchmark.py"}
    assert len(COMMANDS) == 2


def test_its_commands_train_and_evaluate(folder: Path):
    train, evaluate = COMMANDS
    run(folder, train)
    config = json.loads((folder / "runs/careful/config.json").read_text())
    assert config["method"]["source"] == "my_method:careful"
    assert config["corruption"]["kind"] == "my_corruption:top"
    rows = [json.loads(line) for line in (folder / "runs/careful/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["reward/accuracy"] < 1 for row in rows), "the length of a response costs some reward"
    run(folder, evaluate)
    (entry,) = json.loads((folder / "runs/careful/eval/scores.json").read_text())["evaluations"]
    assert (entry["name"], entry["prompts"], entry["samples"]) == ("stripes", 4, 2)


@pytest.mark.parametrize("name", FILES)
def test_the_lines_it_states_are_those_of_the_file(name):
    written = f"```python\n# {name}"
    stated = int(re.findall(r"(\d+) lines(?: without blank ones)?:", PAGE[: PAGE.index(written)])[-1])
    assert stated == len([line for line in FILES[name].splitlines() if line.strip()])
