"""Disks that refuse and files that are damaged: one sentence, and nothing good is lost."""

import errno
import json
import os
import shutil

import pytest
from fault_harness import differences, newest_checkpoint, repeatable_rows

from pivot.errors import UserError
from pivot.runs.checkpoint import MANIFEST, CheckpointStore, find_damage
from pivot.runs.folder import RunFolder
from pivot.runs.run import resume, train

SETTINGS = ("train.steps=4", "train.prompts_per_step=2", "rollout.max_tokens=32", "checkpoint.every=1")


@pytest.fixture(scope="module")
def whole(server, small_config, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    assert server.train(small_config("pivot", *SETTINGS), out).code == 0
    return out


def steps(run):
    return [checkpoint.step for checkpoint in CheckpointStore(run).finished()]


def test_a_disk_that_refuses_a_checkpoint_ends_the_run_and_it_goes_on_later(
    server, small_config, whole, tmp_path
):
    run = tmp_path / "run"
    assert server.train(small_config("pivot", *SETTINGS), run, kill_point="step finished").was_killed
    refused = server.resume(run, largest_file=1_000_000)
    assert refused.code == 2, refused.said
    assert f"cannot write {run}/checkpoints/step-3: file too large; raise the limit" in refused.said
    assert "Traceback" not in refused.said
    assert steps(run) == [2, 1]
    assert find_damage(newest_checkpoint(run)) is None
    assert not list((run / "checkpoints").glob(".*")), "no half-written checkpoint takes up the disk"
    assert json.loads((run / "run.json").read_text())["status"] == "failed"
    assert server.resume(run).code == 0
    assert differences(run, whole) == []


def test_no_space_left_for_a_line_of_metrics(small_config, whole, tmp_path, monkeypatch):
    """The system takes half of the line and refuses the rest, as a full disk does."""
    real, run, writes = os.write, tmp_path / "run", []

    def full(descriptor, data):
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("metrics.jsonl"):
            writes.append(len(data))
            if len(writes) == 3:
                return real(descriptor, data[: len(data) // 2])
            if len(writes) == 4:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(
        UserError, match=r"metrics.jsonl: no space left on device; free some space and try again"
    ):
        train(small_config("pivot", *SETTINGS), run, quiet=True)
    assert len(repeatable_rows(run)) == 2, "no torn line"
    monkeypatch.setattr(os, "write", real)
    assert resume(run, quiet=True).finished
    assert differences(run, whole) == []


def test_a_folder_that_cannot_be_made_is_one_sentence(server, small_config):
    """Nobody may write below /proc, root or not."""
    file_less = server.run("train", "--recipe", "tiny", "--out", "/proc/pivot/run", "--no-report")
    assert file_less.code == 2
    assert "cannot write /proc/pivot/run" in file_less.said
    assert "Traceback" not in file_less.said


def crashed_copy(whole, run):
    """The same run as a crash behind its last step would have left it."""
    shutil.copytree(whole, run)
    status = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(status | {"status": "running"}))
    return run


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("name", "harm", "words"),
    [
        ("model/model.safetensors", flip, "model/model.safetensors: checksum differs"),
        ("optimizer.safetensors", cut, "optimizer.safetensors: "),
        ("buffer/experience.safetensors", os.unlink, "buffer/experience.safetensors: missing"),
        (MANIFEST, os.unlink, f"{MANIFEST}: missing"),
    ],
    ids=["flipped", "cut", "missing", "unlisted"],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(server, whole, tmp_path, name, harm, words):
    run = crashed_copy(whole, tmp_path / "run")
    harm(run / "checkpoints" / "step-4" / name)
    ended = server.resume(run)
    assert ended.code == 0, ended.said
    assert f"checkpoint step-4 is damaged ({words}" in ended.said
    assert "resuming from step-3" in ended.said
    assert (run / "checkpoints" / "step-4.aside").is_dir(), "damage is never deleted"
    assert differences(run, whole) == []


def test_where_every_checkpoint_is_damaged_the_run_stops_and_deletes_nothing(server, whole, tmp_path):
    run = crashed_copy(whole, tmp_path / "run")
    for step in (3, 4):
        flip(run / "checkpoints" / f"step-{step}" / "optimizer.safetensors")
    files = sorted(run.rglob("*"))
    ended = server.resume(run)
    assert ended.code == 2
    assert ended.said.count("optimizer.safetensors: checksum differs") == 2
    assert "holds no usable checkpoint" in ended.said
    assert sorted(run.rglob("*")) == files
    assert repeatable_rows(run) == repeatable_rows(whole)


def test_a_second_trainer_is_refused(server, whole, tmp_path):
    run = crashed_copy(whole, tmp_path / "run")
    before = (run / "metrics.jsonl").read_bytes()
    with RunFolder.open(run):
        ended = server.resume(run)
    assert ended.code == 2
    assert f"{run} is in use by another trainer (process {os.getpid()})" in ended.said
    assert (run / "metrics.jsonl").read_bytes() == before


def test_the_successor_is_complete_before_anything_is_deleted(small_config, tmp_path, monkeypatch):
    """Whenever something is removed below checkpoints/, enough checkpoints that verify stand beside it."""
    real, seen = shutil.rmtree, []

    def watched(path, *args, **kwargs):
        store = CheckpointStore(tmp_path / "run")
        if os.path.exists(path) and ".old-" in str(path):
            good = [c.step for c in store.finished() if find_damage(c.path) is None]
            seen.append((os.path.basename(path), good))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(shutil, "rmtree", watched)
    config = small_config("dapo", *SETTINGS, "checkpoint.keep_last=1", "train.steps=3")
    train(config, tmp_path / "run", quiet=True)
    assert seen == [(".old-step-1", [2]), (".old-step-2", [3])]
