"""Checkpoints that an engine goes on writing while the next step samples."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pivot.config import from_dict, to_dict
from pivot.durable import finished_checkpoints, hash_files, sha256
from pivot.engines import base
from pivot.engines.local import LocalEngine
from pivot.errors import UserError
from pivot.runs.callbacks import Callback
from pivot.runs.checkpoint import CheckpointStore, find_damage
from pivot.runs.run import InProcess, resume, train


class Late:
    """`saving.Saving` that is not done before it is told so."""

    def __init__(self) -> None:
        self.told = threading.Event()

    def wait(self):
        assert self.told.wait(60)
        return {}


class LateEngine(LocalEngine):
    """Its checkpoints are complete once the step after them has sampled; those of the last step at once."""

    run, events, die_at = None, [], None
    saving, current = None, 0

    @classmethod
    def open(cls, config, checkpoint=None):
        engine = super().open(config, checkpoint)
        engine.last = config.train.steps
        return engine

    def sample(self, prompts, request, meanwhile=()):
        step = self.current = request.key[1]
        if step == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.events.append((f"sample {step}", [found for found, _ in finished_checkpoints(self.run)]))
        if self.saving is not None:
            self.saving.told.set()
        return super().sample(prompts, request, meanwhile)

    def save(self, folder):
        super().save(folder)
        self.saving = Late()
        if self.current == self.last:
            self.saving.told.set()
        return self.saving


class Notes(Callback):
    def __init__(self):
        self.steps = []

    def on_checkpoint(self, step, path):
        assert find_damage(path) is None
        self.steps.append(step)


@pytest.fixture
def late(tmp_path, monkeypatch):
    """The engine's class, for a run in `tmp_path / "run"`."""
    engine = type("Engine", (LateEngine,), {"run": tmp_path / "run", "events": []})
    monkeypatch.setitem(base.ENGINES, "late", engine.open)
    return engine


SETTINGS = ("train.steps=3", "checkpoint.every=1", "checkpoint.keep_last=9")


@pytest.fixture(scope="module")
def plain(tmp_path_factory, small_config, repeatable):
    """The metrics of the same run with the local engine's own checkpoints."""
    run = tmp_path_factory.mktemp("plain") / "run"
    train(small_config("dapo", *SETTINGS), run, quiet=True)
    return repeatable(run)


def test_the_next_step_samples_while_a_checkpoint_is_written(tmp_path, small_config, late, repeatable, plain):
    config, notes = small_config("dapo", *SETTINGS), Notes()
    inside = InProcess(callbacks=[notes])
    train(config, tmp_path / "run", engine="late", quiet=True, inside=inside)
    first = {}
    for event, checkpoints in late.events:
        first.setdefault(event, checkpoints)
    assert first == {"sample 1": [], "sample 2": [], "sample 3": [1]}, "step 1 was not complete when 2 began"
    assert notes.steps == [1, 2, 3]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["saved_step"] == 3
    assert repeatable(tmp_path / "run") == plain
    assert [step for step, _ in finished_checkpoints(tmp_path / "run")] == [3, 2, 1]


def test_killed_in_between_the_checkpoint_before_is_good(tmp_path, small_config, late, repeatable, plain):
    """Killed while step 2's checkpoint is written: the run goes on after step 1, as if nothing had happened."""
    config = small_config("dapo", *SETTINGS)
    arguments = [json.dumps(to_dict(config)), str(tmp_path / "run")]
    child = subprocess.run([sys.executable, "-W", "ignore", __file__, *arguments], check=False)
    assert child.returncode == -signal.SIGKILL
    damage = []
    good = CheckpointStore(tmp_path / "run").latest_good(report=damage.append)
    assert (good.step, damage) == (1, [])
    assert resume(tmp_path / "run", quiet=True).finished
    assert repeatable(tmp_path / "run") == plain


def test_a_failed_write_ends_the_run_and_leaves_the_checkpoint_before(tmp_path, small_config, late):
    class Full(Late):
        def wait(self):
            raise OSError(28, "No space left on device")

    original = late.save

    def save(self, folder):
        found = original(self, folder)
        return Full() if self.current == 2 else found

    late.save = save
    with pytest.raises(UserError, match="no space left on device; free some space"):
        train(small_config("dapo", *SETTINGS), tmp_path / "run", engine="late", quiet=True)
    assert [step for step, _ in finished_checkpoints(tmp_path / "run")] == [1]
    assert not list((tmp_path / "run" / "checkpoints").glob(".tmp-*"))
    status = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (status["status"], status["saved_step"]) == ("failed", 1)


def test_checksums_of_the_writers_are_taken_over_and_the_others_computed(tmp_path):
    class Known:
        def wait(self):
            return {"big": "0" * 64}

    def write(folder):
        (folder / "big").write_bytes(b"1")
        (folder / "small").write_bytes(b"2")
        return Known()

    saved = CheckpointStore(tmp_path).start_saving(1, write).result()
    files = json.loads((saved.path / "checksums.json").read_text())["files"]
    assert files["big"]["sha256"] == "0" * 64
    assert files["small"]["sha256"] == sha256(saved.path / "small")
    assert find_damage(saved.path) == "big: checksum differs", (
        "what a writer claimed is verified by who reads it"
    )
    assert hash_files([saved.path / "big"]) == {saved.path / "big": sha256(saved.path / "big")}


if __name__ == "__main__":
    LateEngine.run, LateEngine.die_at = Path(sys.argv[2]), 3
    base.ENGINES["late"] = LateEngine.open
    train(from_dict(json.loads(sys.argv[1])), LateEngine.run, engine="late", quiet=True)
