"""Nothing that is read may run code or write where it should not."""

import ast
import json
import pickle
from pathlib import Path

import pytest
import torch
from fault_harness import newest_checkpoint

from pivot.config import Config
from pivot.durable import sha256
from pivot.errors import UserError
from pivot.models.loading import load_policy
from pivot.runs.checkpoint import MANIFEST, find_damage
from pivot.runs.run import resume, train

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "pivot"
LOADERS = {("pickle", "load"), ("pickle", "loads"), ("torch", "load"), ("joblib", "load"), ("marshal", "loads"),
           ("yaml", "load"), ("shelve", "open"), ("dill", "loads")}  # fmt: skip
ALLOWED = {"rewards/worker.py": {("pickle", "loads")}}
"""The reward function's process reads what the trainer that started it has just written into its pipe."""


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


def calls(path: Path) -> set[tuple[str, str]]:
    nodes = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return {
        (node.value.id, node.attr)
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }


def test_no_file_is_ever_unpickled():
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        assert calls(path) & LOADERS == ALLOWED.get(name, set()), name
        assert "allow_pickle=True" not in path.read_text()


def test_the_search_for_loaders_finds_one(tmp_path):
    (tmp_path / "x.py").write_text("import torch\n\ndef f(path):\n    return torch.load(path)\n")
    assert calls(tmp_path / "x.py") & LOADERS == {("torch", "load")}


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors", "optimizer.safetensors"])
def test_a_pickle_in_a_checkpoint_is_not_opened(tmp_path, small_config, name):
    """With a manifest that fits, so that it is not the checksum that saves us."""
    run, owned = tmp_path / "run", tmp_path / "owned"
    train(small_config("dapo", "train.steps=2", "rollout.max_tokens=8"), run, quiet=True)
    checkpoint = newest_checkpoint(run)
    folder = checkpoint if name.startswith("optimizer") else checkpoint / "model"
    if name == "pytorch_model.bin":
        (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Bomb(owned)))
    files = {
        path.relative_to(checkpoint).as_posix(): {"size": path.stat().st_size, "sha256": sha256(path)}
        for path in checkpoint.rglob("*")
        if path.is_file() and path.name != MANIFEST
    }
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    (checkpoint / MANIFEST).write_text(json.dumps(manifest | {"files": files}))
    assert find_damage(checkpoint) is None
    with pytest.raises(UserError):
        resume(run, quiet=True)
    assert not owned.exists()
    pickle.loads(pickle.dumps(Bomb(owned))).close()
    assert owned.exists(), "the bomb would have worked"


def test_a_models_own_code_runs_only_when_asked_for_by_name(tmp_path):
    """A folder that names Python code of its own is refused, and the code is not run."""
    assert Config().model.trust_remote_code is False
    train_folder, owned = tmp_path / "model", tmp_path / "owned"
    from pivot.models.loading import save_policy

    save_policy(load_policy("tiny"), train_folder)
    config = json.loads((train_folder / "config.json").read_text())
    config |= {
        "model_type": "own",
        "architectures": ["Own"],
        "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForImageTextToText": "own.Own"},
    }
    (train_folder / "config.json").write_text(json.dumps(config))
    (train_folder / "own.py").write_text(f"open({str(owned)!r}, 'w').close()\n")
    with pytest.raises(UserError):
        load_policy(str(train_folder))
    assert not owned.exists()


def test_tensors_are_the_only_thing_in_a_checkpoint_besides_text(tmp_path, small_config):
    train(small_config("pivot", "train.steps=1", "rollout.max_tokens=8"), tmp_path / "run", quiet=True)
    kinds = {path.suffix for path in newest_checkpoint(tmp_path / "run").rglob("*") if path.is_file()}
    assert kinds <= {".safetensors", ".json", ".jinja", ".md", ".txt"}
    assert torch.load.__module__.startswith("torch"), "and nothing has replaced torch.load"
