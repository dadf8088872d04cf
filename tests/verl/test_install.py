"""The documented commands resolve: verl with its vLLM extra and all that this project needs, in one environment."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("verl")  # it takes minutes, and belongs to `make test-verl`

from pivot.engines.verl.environment import NEEDED
from pivot.engines.verl.launch import TESTED, _parse

PROJECT = Path(__file__).parents[2]
PAGE = PROJECT / "docs" / "cluster.md"
SECONDS = 600


@pytest.fixture(scope="module")
def resolved(tmp_path_factory):
    """Distribution -> version of what `pip install` would install on a GPU machine."""
    (command,) = re.findall(r"^(pip install .*verl\[vllm\].*?)\s*(?:#.*)?$", PAGE.read_text(), re.MULTILINE)
    report = tmp_path_factory.mktemp("pip") / "report.json"
    words = [word for word in shlex.split(command)[2:] if word != "-e"]
    options = ["--dry-run", "--quiet", "--ignore-installed", "--report", str(report)]
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run([*pip, "index", "versions", "verl"], capture_output=True).returncode:
        pytest.skip("the package registry cannot be reached")
    done = subprocess.run(
        [*pip, "install", *options, *words], cwd=PROJECT, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(report.read_text())["install"]
    return {_plain(item["metadata"]["name"]): item["metadata"]["version"] for item in found}


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


def test_the_documented_command_installs_everything_that_a_step_imports(resolved):
    missing = [name for name in (*NEEDED.values(), "vllm", "pivot-rl") if _plain(name) not in resolved]
    assert not missing


def test_it_installs_versions_that_the_start_up_check_accepts(resolved):
    for name, (first, end) in TESTED.items():
        assert _parse(first) <= _parse(resolved[_plain(name)]) < _parse(end), name
