"""One trainer at a time, and rows without gaps or duplicates."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pivot.errors import UserError
from pivot.runs.folder import RunFolder, holds_run


def started(path: Path) -> RunFolder:
    run = RunFolder.create(path)
    run.write_config({"method": "pivot"})
    return run


def test_a_new_run_and_its_files(tmp_path):
    with started(tmp_path / "runs" / "x") as run:
        run.update_status(status="running", command="pivot train")
        run.update_status(status="stopped", reason="SIGTERM")
        run.append_metrics({"step": 1, "reward/accuracy": 0.25, "loss/total": float("inf")})
        run.append_rollouts([{"step": 1, "prompt_id": "a"}, {"step": 1, "prompt_id": "b"}])
        assert run.read_config() == {"method": "pivot"}
        assert run.read_metrics() == [
            {"step": 1, "reward/accuracy": 0.25, "loss/total": None, "nonfinite": ["loss/total"]}
        ]
    status = json.loads((tmp_path / "runs/x/run.json").read_text())
    assert status == {"status": "stopped", "command": "pivot train", "reason": "SIGTERM"}
    assert len((tmp_path / "runs/x/rollouts.jsonl").read_text().splitlines()) == 2


def test_a_folder_with_a_run_is_not_overwritten(tmp_path):
    with started(tmp_path) as run:
        run.append_metrics({"step": 1})
    with pytest.raises(UserError, match="already holds a run; continue it with --resume"):
        RunFolder.create(tmp_path)
    RunFolder.open(tmp_path).close()


def test_a_run_that_failed_at_its_start_is_no_obstacle(tmp_path):
    started(tmp_path).close()
    with RunFolder.create(tmp_path) as again:
        again.append_metrics({"step": 1})
        assert again.read_metrics() == [{"step": 1}]


def test_a_folder_without_a_run_is_not_resumed(tmp_path):
    with pytest.raises(UserError, match="holds no run"):
        RunFolder.open(tmp_path)
    assert not holds_run(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_second_trainer_is_refused_and_told_by_whom(tmp_path):
    with (
        started(tmp_path),
        pytest.raises(UserError, match=rf"in use by another trainer \(process {os.getpid()}\)"),
    ):
        RunFolder.open(tmp_path)
    RunFolder.open(tmp_path).close()


def test_a_place_that_cannot_be_a_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*file"):
        RunFolder.create(tmp_path / "file")


def test_files_that_a_crash_left_unfinished_are_removed(tmp_path):
    started(tmp_path).close()
    (tmp_path / ".metrics.jsonl.tmp-99").write_text("half")
    (tmp_path / ".hidden").write_text("somebody's own")
    RunFolder.open(tmp_path).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "config.json", "run.lock"]


HOLDER = """
import os, sys, time
from pathlib import Path
from pivot.runs.folder import RunFolder
run = RunFolder.create(Path(sys.argv[1]))
run.write_config({})
if os.fork() == 0:  # by then the child has let go of the lock
    print(os.getpid(), flush=True)
time.sleep(60)
"""


def test_the_lock_dies_with_a_killed_trainer_though_its_worker_lives(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    worker = int(holder.stdout.readline())
    try:
        with pytest.raises(UserError, match=f"process {holder.pid}"):
            RunFolder.open(tmp_path)
        holder.kill()
        holder.wait()
        os.kill(worker, 0)
        RunFolder.open(tmp_path).close()
    finally:
        os.kill(worker, signal.SIGKILL)
        holder.stdout.close()


def test_resuming_drops_later_rows_and_keeps_them_elsewhere(tmp_path):
    with started(tmp_path) as run:
        for step in range(1, 6):
            run.append_metrics({"step": step})
            run.append_rollouts([{"step": step, "prompt_id": name} for name in "ab"])
        assert run.settle_rows(3) == 6
        assert [row["step"] for row in run.read_metrics()] == [1, 2, 3]
        run.append_metrics({"step": 4, "again": True})
        assert run.settle_rows(3) == 1
        run.append_metrics({"step": 4})
        assert [row["step"] for row in run.read_metrics()] == [1, 2, 3, 4]
    dropped = (tmp_path / "metrics.dropped.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in dropped] == [{"step": 4}, {"step": 5}, {"step": 4, "again": True}]
    assert len((tmp_path / "rollouts.dropped.jsonl").read_text().splitlines()) == 4
    assert len((tmp_path / "rollouts.jsonl").read_text().splitlines()) == 6


def test_rows_up_to_the_checkpoint_are_left_untouched(tmp_path):
    with started(tmp_path) as run:
        run.append_metrics({"step": 1})
        before = run.metrics_path.stat()
        assert run.settle_rows(1) == 0
        after = run.metrics_path.stat()
        assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert not (tmp_path / "metrics.dropped.jsonl").exists()


@pytest.mark.parametrize("tail", [b'{"step": 2, "lo', b'{"step": 1}'])
def test_a_torn_last_line_is_repaired_before_rows_are_added(tmp_path, tail):
    with started(tmp_path) as run:
        run.metrics_path.write_bytes(b'{"step": 0}\n' + tail)
        run.settle_rows(1)
        run.append_metrics({"step": 2})
        assert [row["step"] for row in run.read_metrics()] == ([0, 2] if b"lo" in tail else [0, 1, 2])


WRITER = """
import sys
from pathlib import Path
from pivot.runs.folder import RunFolder
run = RunFolder.open(Path(sys.argv[1]))
for step in range(1, 1_000_000):
    run.append_metrics({"step": step, "text": "x" * 5000})
    if step == 1:
        print("started", flush=True)
"""


def test_a_killed_writer_leaves_rows_that_can_be_continued(tmp_path):
    started(tmp_path).close()
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    writer.stdout.readline()
    time.sleep(0.1)
    writer.kill()
    writer.wait()
    writer.stdout.close()
    with RunFolder.open(tmp_path) as run:
        last = run.read_metrics()[-1]["step"]
        run.settle_rows(last - 1)
        run.append_metrics({"step": last})
        assert [row["step"] for row in run.read_metrics()] == list(range(1, last + 1))
