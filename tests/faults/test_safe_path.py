"""Files in the working directory are not imported: not by the commands, and not by any process that they start."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pivot.errors import UserError
from pivot.rewards.judge import FunctionJudge, RewardRules
from pivot.rewards.process import RewardProcess
from pivot.rewards.verifier import Verifier
from pivot.types import Prompt

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "pivot"
TRAPS = (
    "json",
    "math_verify",
    "sympy",
    "pickle",
    "signal",
    "struct",
    "resource",
    "mathruler",
    "pivot",
    "numpy",
    "torch",
)
PIVOT = str(Path(sys.executable).parent / "pivot")
LIBRARY = r"\log_2 8"
"""Only the library's process can say what it is."""


@pytest.fixture
def trapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory full of modules that leave a file behind when they are imported."""
    for name in TRAPS:
        (tmp_path / f"{name}.py").write_text(
            f"open({str(tmp_path / 'sprung')!r}, 'a').write({name!r})\nraise SystemExit(9)\n"
        )
    paths = [str(Path(path).resolve()) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PACKAGE.parent), *paths]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sprung(folder: Path) -> str:
    return (folder / "sprung").read_text() if (folder / "sprung").exists() else ""


@pytest.mark.parametrize("grader", ["pivot", "mathruler"])
def test_the_verifiers_process(trapped: Path, grader: str) -> None:
    with Verifier(grader, workers=1, seconds=10.0) as verifier:
        assert verifier.grade(f"\\boxed{{{LIBRARY}}}", "3" if grader == "pivot" else LIBRARY).correct
    assert sprung(trapped) == ""


def test_the_reward_functions_process_takes_the_named_file_and_its_neighbours(trapped: Path) -> None:
    (trapped / "beside.py").write_text("VALUE = 0.25\n")
    (trapped / "own.py").write_text(
        "import json, struct, beside\n"
        "def f(completions, **_): return [beside.VALUE + len(json.dumps(0))] * len(completions)\n"
    )
    process = RewardProcess("own.py:f", 30.0)
    assert process.call({"completions": ["a", "b"]}) == [1.25, 1.25]
    process.close()
    assert sprung(trapped) == ""


def test_a_reward_module_is_not_searched_in_the_working_directory(trapped: Path) -> None:
    (trapped / "own.py").write_text("def f(completions, **_): return [7.0] * len(completions)\n")
    with pytest.raises(UserError, match=r"no module 'own' on Python's path .* in this folder, write own\.py"):
        RewardProcess("own:f", 30.0)


def test_a_module_of_pythons_own_cannot_be_replaced(trapped: Path) -> None:
    process = RewardProcess("json:dumps", 30.0)
    process.close()
    assert sprung(trapped) == ""


@pytest.mark.parametrize("command", [["-m", "pivot"], [PIVOT]])
def test_pivot_grade(trapped: Path, command: list[str]) -> None:
    if "-m" in command:
        (trapped / "pivot.py").unlink()  # `python -m pivot` itself looks in the working directory first.
    row = {"response": f"<think>a</think> \\boxed{{{LIBRARY}}}", "answer": "3"}
    done = subprocess.run(
        [sys.executable, *command, "grade"],
        input=json.dumps(row),
        capture_output=True,
        text=True,
        check=False,
    )
    assert sprung(trapped) == ""
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["correct"]


@pytest.mark.slow
def test_pivot_train_and_eval(trapped: Path) -> None:
    small = ["train.steps=1", "train.prompts_per_step=2", "train.minibatch_prompts=2", "rollout.responses=2",
             "rollout.max_tokens=16", "rollout.max_tries=1", "data.size=4", "data.validation_size=2",
             "eval.final_prompts=0", "reward.function=own.py:f"]  # fmt: skip
    (trapped / "own.py").write_text(
        "def f(completions, **_): return [float(len(c) % 2) for c in completions]\n"
    )
    pivot = [sys.executable, PIVOT]
    options = [part for setting in small for part in ("--set", setting)]
    evaluated = "eval --model run --benchmarks tiny-test --out scores --limit 2 --samples 1"
    commands = [
        [*pivot, "train", "--recipe", "tiny", "--out", "run", *options],
        [*pivot, *evaluated.split()],
    ]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert sprung(trapped) == "", command
        assert done.returncode == 0, done.stderr[-2000:]


def test_no_process_is_started_without_a_safe_path() -> None:
    """Every command in the package that has `-m` in it has `-P` right before, or the same as a variable."""
    found = 0
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.List | ast.Tuple):
                words = [item.value if isinstance(item, ast.Constant) else None for item in node.elts]
                if "-m" in words and len(words) > 2:
                    found += 1
                    assert words[words.index("-m") - 1] == "-P" or '"PYTHONSAFEPATH": "1"' in text, path
    assert found >= 4


def test_the_judge_still_finds_functions_on_the_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    judge = FunctionJudge(RewardRules(("fault_rewards:by_length",), timeout=30.0))
    prompts = [Prompt("a", "?", "1"), Prompt("b", "?", "1")]
    rewards = judge.judge(prompts, ["x", "xx"])
    judge.close()
    assert [reward.accuracy for reward in rewards] == [1.0, 0.0], "odd lengths are right"
