"""Leases: a checkpoint that somebody reads is not deleted, and a reader that was killed holds nothing."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pivot.checkpoint_reader import lease
from pivot.durable import remove_unfinished
from pivot.errors import UserError
from pivot.evaluation.scoring import add_scores, read_scores
from pivot.runs.checkpoint import CheckpointStore


def write(folder: Path) -> None:
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")


def steps(store: CheckpointStore) -> list[int]:
    return [checkpoint.step for checkpoint in store.finished()]


def test_a_leased_checkpoint_is_deleted_once_the_lease_has_ended(tmp_path):
    store = CheckpointStore(tmp_path, keep_last=1)
    store.save(1, write)
    with lease(store.folder / "step-1" / "model"), lease(store.folder / "step-1" / "model"):
        store.save(2, write)
        store.save(3, write)
        assert steps(store) == [3, 1]
        assert (store.folder / "step-1" / "model" / "config.json").exists()
    store.save(4, write)
    assert steps(store) == [4]


READER = """
import sys, time
from pathlib import Path
from pivot.checkpoint_reader import lease
with lease(Path(sys.argv[1])):
    print("reading", flush=True)
    time.sleep(600)
"""


def test_the_lease_of_a_killed_process_ends_with_it(tmp_path):
    store = CheckpointStore(tmp_path, keep_last=1)
    store.save(1, write)
    command = [sys.executable, "-c", READER, str(store.folder / "step-1" / "model")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reading\n"
        store.save(2, write)
        assert steps(store) == [2, 1]
        reader.send_signal(signal.SIGKILL)
    store.save(3, write)
    assert steps(store) == [3]


def test_a_plain_folder_needs_no_lease(tmp_path):
    with lease(tmp_path):
        assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_goes_before_its_lease_is_one_sentence(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path)
    store.save(1, write)
    real = os.open

    def late(path, *args, **kwargs):
        descriptor = real(path, *args, **kwargs)
        if str(path).endswith("checksums.json"):
            shutil.rmtree(store.folder / "step-1")
        return descriptor

    monkeypatch.setattr(os, "open", late)
    with (
        pytest.raises(UserError, match=r"step-1 was deleted by its run"),
        lease(store.folder / "step-1" / "model"),
    ):
        pass


def test_temporary_files_of_killed_processes_go_and_those_of_running_ones_stay(tmp_path):
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    for pid in (ended.pid, os.getppid(), os.getpid()):
        (tmp_path / f".scores.json.tmp-{pid}").write_text("half")
    (tmp_path / ".name.tmp-x").write_text("somebody's own")
    remove_unfinished(tmp_path, tmp_path / "absent")
    assert sorted(os.listdir(tmp_path)) == [".name.tmp-x", f".scores.json.tmp-{os.getppid()}"]


SCORER = """
import sys
from pathlib import Path
from pivot.evaluation.scoring import add_scores
for i in range(20):
    fields = {"when": None, "blank": False, "samples": 1, "prompts": 1, "accuracy": 1.0, "interval": [1.0, 1.0]}
    add_scores(Path(sys.argv[1]), [{"name": f"{sys.argv[2]}-{i}", **fields}])
"""


def test_two_processes_that_add_scores_lose_none(tmp_path):
    path = tmp_path / "scores.json"
    writers = [subprocess.Popen([sys.executable, "-c", SCORER, str(path), name]) for name in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert len(read_scores(path)) == 40
    add_scores(path, [])
    assert len(read_scores(path)) == 40
