"""`docs/paper_map.md` and `docs/decisions.md` name what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pivot.method
from pivot.method import PRESETS, Method
from pivot.method.presets import GROUPS, MODULES

ROOT = Path(__file__).parent.parent.parent
PAPER_MAP = (ROOT / "docs" / "paper_map.md").read_text(encoding="utf-8")
DECISIONS = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")


def test_every_equation_has_its_line() -> None:
    numbered: set[int] = set()
    for cell in re.findall(r"^\| ([\d, -]+) \|", PAPER_MAP, flags=re.MULTILINE):
        for part in cell.split(","):
            first, _, last = part.strip().partition("-")
            numbered |= set(range(int(first), int(last or first) + 1))
    assert numbered == set(range(1, 28))


def test_every_function_of_the_map_exists() -> None:
    """Words in backquotes that look like functions of pivot.method, in the columns that name functions."""
    named = set(re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+)+)[`(]", PAPER_MAP))
    missing = named - set(pivot.method.__all__)
    assert not missing


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`([a-z_/]+/[a-z_]+\.py)", PAPER_MAP))))
def test_every_file_of_the_map_exists(path: str) -> None:
    roots = (ROOT / "src" / "pivot", ROOT, ROOT / "tests" / "method")
    assert any((root / path).exists() for root in roots)


def test_every_test_of_the_map_exists() -> None:
    for name, function in re.findall(r"`(test_[a-z_]+\.py)(?:::(test_[a-z_]+))?`", PAPER_MAP):
        found = [*(ROOT / "tests").rglob(name)]
        assert found, name
        assert any(f"def {function}" in path.read_text(encoding="utf-8") for path in found), function


def test_every_method_has_its_section() -> None:
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)$", page, flags=re.MULTILINE) == [
        name for names in GROUPS.values() for name in _in_order(names, page)
    ]
    assert set(re.findall(r"^\| `\+([a-z]+)` \|", page, flags=re.MULTILINE)) == set(MODULES)
    named = {word.partition("=")[0] for word in re.findall(r"`([a-z_]+(?:=[a-z_0-9.]+)?)`", page)}
    known = {*Method("", "").settings(), *PRESETS}
    assert {name for name in named if "_" in name} <= known


def _in_order(names: list[str], page: str) -> list[str]:
    """The page may order the methods of a group as it reads best."""
    return sorted(names, key=lambda name: page.index(f"\n## {name}\n"))


def test_every_switch_of_the_decisions_exists() -> None:
    settings = set(re.findall(r"`method\.([a-z_]+)`", DECISIONS))
    assert settings
    assert settings <= Method("", "").settings().keys()
