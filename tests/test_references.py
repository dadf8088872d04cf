"""What the code and the documents refer to exists: nothing outside the repository, no part that the paper lacks."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "docs", "examples", "benchmarks", "tests")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "pyproject.toml")
SUFFIXES = {".py", ".md", ".yaml", ".yml", ".toml", ".js", ".html", ".css", ".json", ".sh", ".txt"}

APPENDICES = {"A", "B", "C", "C.1", "C.2", "D", "D.1", "D.2", "D.3", "D.4"}
"""A justification of c; B detrending; C settings: data and evaluation, implementation; D results: interventions,
token maps, attention, overhead."""
SECTIONS = {"1", "2", "3", "3.1", "3.2", "4", "4.1", "4.2", "4.3", "5", "5.1", "5.2", "5.3", "5.4", "6"}
NUM_EQUATIONS = 27

APPENDIX = re.compile(r"\bApp(?:endix|\.) (\w(?:\.\d+)?|\S+)")
SECTION = re.compile(r"\bSec(?:tion|\.)\s+(\d+(?:\.\d+)*)")
EQUATIONS = re.compile(r"\bEqs?\.\s?((?:\d+(?:[-–]\d+)?(?:, | and )?)+)")

SUBJECTS = {
    "C.1": r"601|data set|benchmark|training problems|ViRL39K",
    "C.2": r"patches|black|format|template|warm|solved|\bW\b|gamma|lambda|replay|N_off|batch",
    "D.1": r"intervention|pixel|image",
    "D.2": r"token",
    "D.3": r"attention",
    "D.4": r"overhead|step times|seconds|s/step|GPU",
}
"""Appendix -> what a line that cites it is about."""


def sources(*folders: str) -> list[tuple[str, str]]:
    """(path from the root, text) of what was written by hand; this file quotes what it forbids."""
    found = [ROOT / page for page in PAGES]
    for folder in folders:
        found += [path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES]
    return [
        (str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
        for path in found
        if path != Path(__file__).resolve()
    ]


def places(pattern: str, *folders: str) -> list[str]:
    """`path:line: text` of every match, in any case."""
    wanted = re.compile(pattern, re.IGNORECASE)
    return [
        f"{path}:{number}: {line.strip()[:120]}"
        for path, text in sources(*folders)
        for number, line in enumerate(text.splitlines(), 1)
        if wanted.search(line)
    ]


def cited(pattern: re.Pattern[str]) -> list[tuple[str, str, str]]:
    """(path, line, what is cited) of every citation."""
    return [
        (path, line.strip(), found.group(1))
        for path, text in sources(*FOLDERS)
        for line in text.splitlines()
        for found in pattern.finditer(line)
    ]


@pytest.mark.parametrize("pattern", [r"\bmethod\.md\b", r"\b(?:see )?items? \d+(?:, \d+|-\d+)*\)"])
def test_nothing_refers_to_a_page_outside_the_repository(pattern):
    assert places(pattern, *FOLDERS) == []


@pytest.mark.parametrize("pattern", [r"\bshared/", r"\b(?:was|were)? ?run here\b", r"\brun_here\b"])
def test_users_are_not_told_of_the_machine_it_was_made_on(pattern):
    assert places(pattern, "src", "docs", "examples", "benchmarks") == []


def test_every_appendix_that_is_cited_exists_and_is_about_that():
    citations = cited(APPENDIX)
    assert len(citations) > 15
    assert [c for c in citations if c[2] not in APPENDICES] == []
    astray = [c for c in citations if not re.search(SUBJECTS.get(c[2], ""), c[1], re.IGNORECASE)]
    assert astray == []


def test_every_section_that_is_cited_exists():
    citations = cited(SECTION)
    assert len(citations) > 15
    assert [c for c in citations if c[2] not in SECTIONS] == []


def test_every_equation_that_is_cited_exists():
    citations = cited(EQUATIONS)
    assert len(citations) > 150
    numbers = [(c, int(n)) for c in citations for n in re.findall(r"\d+", c[2])]
    assert [c for c, number in numbers if not 1 <= number <= NUM_EQUATIONS] == []


SYMBOLS = {
    r"\bV\(y\)": {4, 7},
    r"\bH\(y\)": {5, 7},
    r"p\(1-p\)": {6},
    r"softplus": {8, 9},
    r"\bc_t = ": {10},
    r"\bF_t = ": {11},
    r"\bu_t = ": {12},
    r"\bU_t = ": {11, 12, 13},
    r"max\(A', 0\)": {15},
    r"\blambda_exp\b": {16},
}
"""What a line of code speaks of -> the equations of which it cites at least one."""


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_equations_are_cited_by_the_right_number(symbol):
    lines = [c for c in cited(EQUATIONS) if c[0].startswith("src/") and re.search(symbol, c[1])]
    assert lines
    for path, line, numbers in lines:
        first, *rest = map(int, re.findall(r"\d+", numbers))
        assert set(range(first, max([first, *rest]) + 1)) & SYMBOLS[symbol], (path, line)


def test_the_map_of_contributing_names_files_that_exist_with_what_they_decide() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+\?) \| (.+) \|$", page, re.MULTILINE)
    assert len(rows) >= 10
    for question, answer in rows:
        quoted = re.findall(r"`([^`]+)`", answer)
        files = [
            ROOT / "src/pivot" / name.partition(":")[0]
            for name in quoted
            if "/" in name or name.endswith(".py")
        ]
        assert files, question
        assert all(path.exists() for path in files), question
        text = "".join(path.read_text(encoding="utf-8") for path in files if path.is_file())
        names = [
            name.rpartition(".")[2] for name in quoted if re.fullmatch(r"[\w.]+", name) and ".py" not in name
        ]
        missing = [
            name for name in names if not re.search(rf"\b{name}\b", text) and name not in ("native", "vllm")
        ]
        assert not missing, question
