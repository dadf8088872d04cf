"""Checkpoints under faults: whole or not there, never believed when damaged, never deleted too early."""

import json
import multiprocessing
import os
import random
import resource
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from pivot.errors import UserError
from pivot.runs.checkpoint import MANIFEST, CheckpointStore, find_damage


def write_step(step: int):
    """A checkpoint's content: a nested folder with a tensor and a JSON file."""

    def write(folder: Path) -> None:
        (folder / "model").mkdir()
        save_file({"w": torch.full((100,), float(step))}, folder / "model" / "model.safetensors")
        (folder / "state.json").write_text(json.dumps({"step": step}))

    return write


def filled(run: Path, *steps: int, keep_last: int = 2) -> CheckpointStore:
    store = CheckpointStore(run, keep_last=keep_last)
    for step in steps:
        store.save(step, write_step(step))
    return store


def steps(store: CheckpointStore) -> list[int]:
    return [checkpoint.step for checkpoint in store.finished()]


def names(store: CheckpointStore) -> set[str]:
    return set(os.listdir(store.folder))


def test_the_newest_good_checkpoint_is_found(tmp_path):
    store = filled(tmp_path, 5, 10)
    latest = store.latest_good()
    assert latest is not None
    assert (latest.step, latest.path) == (10, tmp_path / "checkpoints" / "step-10")
    assert json.loads((latest.path / "state.json").read_text()) == {"step": 10}
    assert CheckpointStore(tmp_path / "nowhere").latest_good() is None


def test_steps_are_ordered_as_numbers(tmp_path):
    assert steps(filled(tmp_path, 9, 10, 100, keep_last=3)) == [100, 10, 9]


def test_the_last_and_the_best_are_kept(tmp_path):
    store = CheckpointStore(tmp_path, keep_last=2)
    for step, score in [(1, 0.3), (2, 0.9), (3, 0.9), (4, float("nan")), (5, None), (6, 0.1)]:
        store.save(step, write_step(step), score=score)
    assert [(checkpoint.step, checkpoint.score) for checkpoint in store.finished()] == [
        (6, 0.1),
        (5, None),
        (3, 0.9),
    ]
    assert names(store) == {"step-3", "step-5", "step-6"}


def test_a_callback_that_raises_leaves_everything_as_it_was(tmp_path):
    store = filled(tmp_path, 1, 2)

    def broken(folder: Path) -> None:
        (folder / "half").write_bytes(b"x")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.save(3, broken)
    assert names(store) == {"step-1", "step-2"}
    latest = store.latest_good()
    assert latest is not None
    assert latest.step == 2


@pytest.mark.parametrize("writer", ["python", "safetensors"])
def test_a_disk_that_refuses_is_one_sentence_and_the_last_checkpoint_stays(tmp_path, writer):
    store = filled(tmp_path, 1)

    def large(folder: Path) -> None:
        if writer == "python":
            (folder / "a").write_bytes(bytes(100_000))
        else:
            save_file({"w": torch.zeros(100_000)}, folder / "a")

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(UserError, match=r"cannot write .*step-2: file too large; raise the limit"):
            store.save(2, large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(store) == {"step-1"}
    assert find_damage(store.folder / "step-1") is None


def test_a_full_disk_is_one_sentence(tmp_path):
    def full(folder: Path) -> None:
        (folder / "model").symlink_to("/dev/full")
        (folder / "model").write_bytes(b"x")

    with pytest.raises(UserError, match=r"cannot write .*step-2: no space left on device; free some space"):
        filled(tmp_path, 1).save(2, full)


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "checkpoints").write_text("a file stands where the folder should be")
    with pytest.raises(UserError, match=r"cannot write .*step-1"):
        CheckpointStore(tmp_path).save(1, write_step(1))


@contextmanager
def ordinary_user():
    """Root may write anywhere: step down to nobody for as long as permissions are to bind."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_a_read_only_folder_is_one_sentence_and_the_last_checkpoint_stays():
    with tempfile.TemporaryDirectory() as name:
        run = Path(name)
        store = filled(run, 1)
        run.chmod(0o755)
        store.folder.chmod(0o555)
        with (
            ordinary_user(),
            pytest.raises(UserError, match=r"step-2: permission denied; choose a folder that you may"),
        ):
            store.save(2, write_step(2))
        store.folder.chmod(0o755)
        assert names(store) == {"step-1"}
        assert find_damage(store.folder / "step-1") is None


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize(
    ("name", "harm", "words"),
    [
        ("model/model.safetensors", flip, "model/model.safetensors: checksum differs"),
        ("state.json", cut, "state.json: 9 bytes instead of 12"),
        ("model/model.safetensors", Path.unlink, "model/model.safetensors: missing"),
        (MANIFEST, Path.unlink, f"{MANIFEST}: missing"),
        (MANIFEST, cut, f"{MANIFEST}: unreadable"),
    ],
)
def test_damage_is_named_and_the_one_before_is_used(tmp_path, name, harm, words):
    store = filled(tmp_path, 20, 40)
    harm(store.folder / "step-40" / name)
    said: list[str] = []
    latest = store.latest_good(report=said.append)
    assert latest is not None
    assert latest.step == 20
    assert said == [f"checkpoint step-40 is damaged ({words})"]
    assert (store.folder / "step-40").is_dir(), "damage is never deleted"


def test_every_checkpoint_damaged(tmp_path):
    store = filled(tmp_path, 1, 2)
    for step in (1, 2):
        flip(store.folder / f"step-{step}" / "state.json")
    said: list[str] = []
    assert store.latest_good(report=said.append) is None
    assert len(said) == 2
    latest = store.latest_good(verify=False)
    assert latest is not None
    assert latest.step == 2, "without reading all bytes a flipped one is not seen"


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname"])
def test_a_manifest_cannot_lead_out_of_its_folder(tmp_path, name):
    store = filled(tmp_path, 1)
    manifest = store.folder / "step-1" / MANIFEST
    content = json.loads(manifest.read_text())
    content["files"][name] = {"size": 0, "sha256": ""}
    manifest.write_text(json.dumps(content))
    assert find_damage(store.folder / "step-1") == f"{MANIFEST}: unreadable"


def test_a_resumed_run_leaves_later_checkpoints_aside(tmp_path):
    store = filled(tmp_path, 20, 30, 40, keep_last=3)
    flip(store.folder / "step-40" / "state.json")
    assert sorted(path.name for path in store.set_aside_after(20)) == ["step-30.aside", "step-40.aside"]
    store.save(40, write_step(41))
    assert steps(store) == [40, 20]
    assert json.loads((store.folder / "step-40" / "state.json").read_text()) == {"step": 41}
    assert (store.folder / "step-40.aside").is_dir()


def test_a_step_that_is_saved_again_replaces_its_checkpoint(tmp_path):
    store = filled(tmp_path, 1)
    store.save(1, write_step(7), score=0.5)
    assert names(store) == {"step-1"}
    assert json.loads((store.folder / "step-1" / "state.json").read_text()) == {"step": 7}
    assert find_damage(store.folder / "step-1") is None


def test_a_crash_between_the_two_renames_of_a_replacement_loses_nothing(tmp_path):
    store = filled(tmp_path, 1)
    (store.folder / "step-1").rename(store.folder / ".replaced-step-1")
    store.clean_leftovers()
    assert names(store) == {"step-1"}
    assert find_damage(store.folder / "step-1") is None


def test_checkpoints_set_aside_twice_are_both_kept(tmp_path):
    for step in (2, 2):
        filled(tmp_path, 1, step).set_aside_after(1)
    assert names(CheckpointStore(tmp_path)) == {"step-1", "step-2.aside", "step-2.aside-2"}


def test_leftovers_of_a_crash_are_cleaned(tmp_path):
    store = filled(tmp_path, 1)
    for name in (".tmp-step-2-99", ".old-step-0"):
        (store.folder / name / "model").mkdir(parents=True)
    assert steps(store) == [1]
    store.clean_leftovers()
    assert names(store) == {"step-1"}


def save_until_killed(run, said):
    """Save one checkpoint after the other and say so; in a process of its own."""
    store = CheckpointStore(run, keep_last=1)
    latest = store.latest_good()
    step = 1 if latest is None else latest.step + 1
    store.clean_leftovers()
    while True:
        content = str(step).encode() * 20_000

        def write(folder, content=content):
            for name in "abcdef":
                (folder / name).write_bytes(content)

        store.save(step, write, score=0.0)
        os.write(said, b"%d\n" % step)
        step += 1


def test_kill_in_the_middle_of_saving_never_loses_the_last_checkpoint(tmp_path):
    """SIGKILL at random moments of a process that does nothing but save: what it said it saved is there."""
    store, moments, last = CheckpointStore(tmp_path), random.Random(0), 0
    for _ in range(8):
        reader, writer = os.pipe()
        saver = multiprocessing.get_context("fork").Process(target=save_until_killed, args=(tmp_path, writer))
        saver.start()
        os.close(writer)
        output = os.fdopen(reader)
        said = [int(output.readline())]
        time.sleep(moments.uniform(0.0, 0.05))
        saver.kill()
        said += map(int, output.read().split())
        saver.join()
        output.close()
        damage: list[str] = []
        latest = store.latest_good(report=damage.append)
        assert latest is not None
        assert damage == []
        assert latest.step in (said[-1], said[-1] + 1)
        assert said[0] == last + 1, "each process went on from the one before"
        assert (latest.path / "f").read_bytes() == str(latest.step).encode() * 20_000
        last = latest.step
