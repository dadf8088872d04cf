"""What is installed and what is published: metadata, wheel, sdist, Docker context."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NOT_SOURCES = ("runs", "build", "dist", "site")


def _ignored(folder, names):
    at_top = Path(folder) == ROOT
    return {
        name for name in names if name[0] == "." or name == "__pycache__" or (at_top and name in NOT_SOURCES)
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist and the wheel, built from a copy of the repository without a network."""
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("build")
    shutil.copytree(ROOT, folder / "source", ignore=_ignored)
    shutil.copy(ROOT / ".dockerignore", folder / "source")
    code = "from setuptools import build_meta as b; print(b.build_sdist('../out'), b.build_wheel('../out'))"
    (folder / "out").mkdir()
    subprocess.run([sys.executable, "-c", code], cwd=folder / "source", check=True, capture_output=True)
    return next((folder / "out").glob("*.tar.gz")), next((folder / "out").glob("*.whl"))


def test_the_wheel_holds_the_package_and_nothing_else(built):
    names = zipfile.ZipFile(built[1]).namelist()
    assert {name.split("/")[0] for name in names} == {"pivot", f"pivot_rl-{PROJECT['version']}.dist-info"}
    for needed in (
        "pivot/py.typed",
        "pivot/recipes/tiny.yaml",
        "pivot/report/page.js",
        "pivot/data/memory.py",
    ):
        assert needed in names
    assert any(name.startswith("pivot/tiny/assets/easy/") and name.endswith(".safetensors") for name in names)


def test_the_sdist_can_be_tested(built):
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for needed in (
        "Makefile", "pyproject.toml", "Dockerfile", "mkdocs.yml", "docs/api.md", "tests/conftest.py",
        "tests/training/golden.json", "examples/first_steps.ipynb", "benchmarks/step.py",
        "experiments/tiny_world/plan.yaml",
    ):  # fmt: skip
        assert needed in names, needed
    missing = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py")} - names
    assert not missing


def test_the_metadata_is_complete_and_its_description_links_to_nothing_relative(built):
    with zipfile.ZipFile(built[1]) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
        metadata = Parser().parsestr(wheel.read(name).decode())
    for field in (
        "Name",
        "Version",
        "Summary",
        "Author",
        "Maintainer",
        "License-Expression",
        "Keywords",
        "Requires-Python",
    ):
        assert metadata[field], field
    assert "Typing :: Typed" in metadata.get_all("Classifier")
    assert metadata["Description-Content-Type"] == "text/markdown"
    description = metadata.get_payload()
    assert "pivot train" in description
    links = re.findall(r"\]\(([^)]+)\)", description)
    assert all(link.startswith("https://") for link in links), links
    assert set(metadata.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])


def test_the_image_is_built_from_files_that_exist():
    copied = re.findall(r"^COPY (.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    sources = [source for line in copied for source in line.split()]
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert sorted(sources) == sorted(allowed)
    for source in sources:
        assert (ROOT / source).exists(), source
