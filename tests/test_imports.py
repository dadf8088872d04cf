"""The direction of imports (CONTRIBUTING.md): nothing imports upward, and `method/` needs torch alone."""

from __future__ import annotations

import ast
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "pivot"

LAYERS: tuple[set[str], ...] = (
    {
        *("errors", "types", "durable", "seeding", "jsonl", "terminal", "console", "hub", "locks"),
        *("checkpoint_reader", "plugins", "setting_names"),
    },
    {"method"},
    {"experience", "data", "rewards", "tiny"},
    {"models"},
    {"config", "recipes"},
    {"sampling"},
    {"evaluation"},
    {"engines"},
    {"training"},
    {"runs"},
)
"""From the bottom up; rooms that are not named here stand on top and may import everything. So does `engines/verl`:
verl starts a process of its own, and a whole run in it."""

LAYER_OF = {room: height for height, rooms in enumerate(LAYERS) for room in sorted(rooms)}


def _modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _room(path: Path) -> str:
    return _room_of(path.relative_to(PACKAGE).with_suffix("").parts)


def _room_of(parts: tuple[str, ...]) -> str:
    return "engines/verl" if parts[:2] == ("engines", "verl") else parts[0]


def _imports(path: Path) -> set[str]:
    """Absolute names of all modules that a file imports, wherever in the file."""
    package = ("pivot", *path.relative_to(PACKAGE).parent.parts)
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            names.add(module)
            names.update(f"{module}.{alias.name}" for alias in node.names)
    return names


def _imported_rooms(path: Path) -> set[str]:
    rooms = {p.name.removesuffix(".py") for p in PACKAGE.iterdir()}
    parts = (tuple(name.split(".")) for name in _imports(path))
    return {_room_of(p[1:]) for p in parts if p[0] == "pivot" and len(p) > 1 and p[1] in rooms}


@pytest.mark.parametrize("room", LAYER_OF)
def test_no_room_imports_upward(room: str) -> None:
    top = len(LAYERS)
    for path in _modules():
        if _room(path) == room:
            upward = {other for other in _imported_rooms(path) if LAYER_OF.get(other, top) > LAYER_OF[room]}
            assert not upward, f"{path.relative_to(PACKAGE)} imports {sorted(upward)}"


def test_rooms_of_one_layer_do_not_import_each_other_in_a_circle() -> None:
    edges: dict[str, set[str]] = {room: set() for room in LAYER_OF}
    for path in _modules():
        if _room(path) in edges:
            edges[_room(path)] |= _imported_rooms(path) - {_room(path)}
    # static_order raises CycleError, which names the circle.
    assert set(TopologicalSorter(edges).static_order()) >= set(LAYER_OF)


def test_sweep_knows_neither_the_command_line_nor_the_tiny_study() -> None:
    allowed = {
        "errors",
        "durable",
        "jsonl",
        "config",
        "recipes",
        "method",
        "evaluation",
        "training",
        "runs",
        "report",
        "doctor",
        "sweep",
    }
    files = [path for path in _modules() if _room(path) == "sweep"]
    assert files
    for path in files:
        foreign = _imported_rooms(path) - allowed
        assert not foreign, f"{path.relative_to(PACKAGE)} imports {sorted(foreign)}"


def test_method_imports_torch_and_the_standard_library_alone() -> None:
    allowed = {"torch", "pivot", *sys.stdlib_module_names}
    files = [path for path in _modules() if _room(path) == "method"]
    assert files
    for path in files:
        foreign = {name.split(".")[0] for name in _imports(path)} - allowed
        assert not foreign, f"{path.relative_to(PACKAGE)} imports {sorted(foreign)}"


def test_optional_engines_are_imported_in_their_own_files_alone() -> None:
    homes = {"vllm": "sampling/vllm_sampler.py", "verl": "engines/verl/", "ray": "engines/verl/"}
    for path in _modules():
        name = path.relative_to(PACKAGE).as_posix()
        for engine in {imported.split(".")[0] for imported in _imports(path)} & set(homes):
            assert name.startswith(homes[engine]), f"{name} imports {engine}"


FAMILY_ROOMS = {"models", "tiny"}
FAMILY_WORDS = ("qwen", "idefics", "smolvlm", "internvl", "gemma", "llava", "mrope", "grid_thw")


def _words_of_code(path: Path) -> set[str]:
    """Names and texts of a file without its docstrings and comments; hub ids (owner/name) are left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    docs = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found: set[str] = set()
    for node in ast.walk(tree):
        for _, value in ast.iter_fields(node):
            if isinstance(value, str) and node not in docs and "/" not in value:
                found.add(value)
    return found


def test_models_and_tiny_alone_know_model_families() -> None:
    for path in _modules():
        if _room(path) in FAMILY_ROOMS:
            continue
        name = path.relative_to(PACKAGE).as_posix()
        own = {module for module in _imports(path) if module.startswith("transformers.models.")}
        assert not {module for module in own if not module.startswith("transformers.models.auto")}, name
        known = {word for word in _words_of_code(path) if any(f in word.lower() for f in FAMILY_WORDS)}
        assert not known, f"{name} knows a model family: {sorted(known)}"


def test_an_upward_import_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for room in ("method", "training"):
        (tmp_path / room).mkdir()
    module = tmp_path / "method" / "wrong.py"
    module.write_text("def f():\n    from ..training import step\n", encoding="utf-8")
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path)
    assert _imported_rooms(module) == {"training"}
