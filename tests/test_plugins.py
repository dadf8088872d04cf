"""Code from outside: which names import what, and what a mistake says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pivot.errors import UserError
from pivot.plugins import absolute, find_function, find_object, import_plugins


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a file and a module that is not on Python's path."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "mine.py").write_text("def double(x):\n    return 2 * x\n\nsize = 3\n")
    (tmp_path / "sub" / "mine.py").write_text("def double(x):\n    return 20 * x\n")
    (tmp_path / "broken.py").write_text("import sys\n\nvalue = 1 / 0\n")
    (tmp_path / "leaving.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "needy.py").write_text("import no_such_dependency\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_is_imported_from_exactly_that_path_and_once(folder: Path):
    before = list(sys.path)
    assert find_function("mine.py:double", "reward")(4) == 8
    assert find_function("sub/mine.py:double", "reward")(4) == 80
    assert find_function(f"{folder}/mine.py:double", "reward") is find_function("mine.py:double", "reward")
    assert sys.path == before
    assert "mine" not in sys.modules


def test_a_module_comes_from_pythons_path(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(folder / "sub"))
    assert find_function("mine:double", "reward")(1) == 20
    assert find_object("fractions:Fraction", "class", type).__name__ == "Fraction"
    sys.modules.pop("mine")


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            "mine:double",
            "There is no module 'mine' on Python's path for the reward mine; to use the file in this folder, write "
            "mine.py.",
        ),
        (
            "no.such:double",
            "There is no module 'no' on Python's path for the reward no.such; install it or set PYTHONPATH.",
        ),
        (
            "json.none:double",
            "There is no module 'json.none' on Python's path for the reward json.none; install it or set PYTHONPATH.",
        ),
        ("mine.py:duoble", "mine.py has no reward 'duoble'; the nearest is double."),
        ("mine.py:size", "mine.py:size is of type int, but a reward must be a function."),
        ("mine.py", "'mine.py' is not a reward: write package.module:name or path/to/file.py:name."),
        ("mine.py:", "'mine.py:' is not a reward: write package.module:name or path/to/file.py:name."),
        (
            "broken.py:f",
            "importing broken.py raised ZeroDivisionError: division by zero (broken.py, line 3).",
        ),
        ("leaving.py:f", "importing leaving.py raised SystemExit: 3 (leaving.py, line 1)."),
        (
            "needy.py:f",
            "importing needy.py raised ModuleNotFoundError: No module named 'no_such_dependency' (needy.py, line 1).",
        ),
        (
            "a/b:f",
            "the reward 'a/b' is neither a module (package.module) nor a file (path/to/file.py).",
        ),
        ("..os:f", "the reward '..os' is neither a module (package.module) nor a file (path/to/file.py)."),
    ],
)
def test_a_mistake_is_one_sentence(folder: Path, spec: str, sentence: str):
    with pytest.raises(UserError) as caught:
        find_function(spec, "reward")
    assert str(caught.value) == sentence


def test_a_file_that_is_missing_is_named_with_its_whole_path(folder: Path):
    with pytest.raises(UserError, match=rf"^There is no file {folder}/none\.py for the plugin\.$"):
        import_plugins(["none.py"])


def test_a_file_that_failed_is_tried_again(folder: Path):
    with pytest.raises(UserError, match="ZeroDivisionError"):
        import_plugins(["broken.py"])
    (folder / "broken.py").write_text("value = 1\n")
    assert find_object("broken.py:value", "number", int) == 1


def test_only_files_are_made_absolute(folder: Path):
    assert absolute("mine.py:double") == f"{folder}/mine.py:double"
    assert absolute("sub/../mine.py") == f"{folder}/mine.py"
    assert absolute("mine:double") == "mine:double"
    assert absolute("patch") == "patch"
