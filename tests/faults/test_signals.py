"""SIGINT and SIGTERM: the step is finished or abandoned, what is good is kept, and it takes a bounded time."""

import json
import subprocess
import sys

import pytest
from fault_harness import differences, newest_checkpoint, repeatable_rows

from pivot.runs import stopping
from pivot.runs.checkpoint import find_damage

SETTINGS = (
    "train.steps=3",
    "train.prompts_per_step=2",
    "rollout.max_tokens=32",
    "method.dynamic_sampling=false",
)


def status(run):
    return json.loads((run / "run.json").read_text())


@pytest.fixture(scope="module")
def whole(server, small_config, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    assert server.train(small_config("pivot", *SETTINGS, "checkpoint.every=100"), out).code == 0
    return out


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_finishes_the_step_saves_and_says_how_to_go_on(server, small_config, whole, tmp_path, name):
    run = tmp_path / "run"
    config = small_config("pivot", *SETTINGS, "checkpoint.every=100")
    ended = server.train(config, run, pause_point="rollout", signals=[(name, "pausing at")])
    assert ended.code == 3, ended.said
    assert f"{name}: finishing this step, then saving" in ended.said
    assert f"pivot train --resume {run}" in ended.said
    assert "Traceback" not in ended.said
    assert (status(run)["status"], status(run)["reason"]) == ("stopped", name)
    assert len(repeatable_rows(run)) == 2, "the step in which it came was finished"
    assert newest_checkpoint(run).name == "step-2"
    assert server.resume(run).code == 0
    assert differences(run, whole) == []


def test_a_second_interrupt_leaves_at_once_with_the_last_checkpoint(server, small_config, whole, tmp_path):
    run = tmp_path / "run"
    ended = server.train(
        small_config("pivot", *SETTINGS, "checkpoint.every=1"),
        run,
        hang_point="scoring",
        signals=[("SIGINT", "hanging at"), ("SIGINT", "finishing this step")],
    )
    assert ended.code == 130, ended.said
    assert "Traceback" not in ended.said
    assert newest_checkpoint(run).name == "step-1"
    assert find_damage(newest_checkpoint(run)) is None
    assert status(run)["reason"] == "interrupted twice"
    assert server.resume(run).code == 0
    assert [row["step"] for row in repeatable_rows(run)] == [1, 2, 3]


@pytest.mark.parametrize("place", ["rollout", "scoring"])
def test_while_no_weight_has_changed_the_step_before_is_saved_at_once(
    server, small_config, whole, tmp_path, place
):
    """A long step is not worth a scheduler's grace period: the state is that of the last finished step."""
    run = tmp_path / "run"
    config = small_config("pivot", *SETTINGS, "checkpoint.every=100", "checkpoint.stop_seconds=0.01")
    ended = server.train(config, run, hang_point=place, signals=[("SIGTERM", "hanging at")])
    assert ended.code == 3, ended.said
    assert "stopped after step 1" in ended.said
    assert status(run)["reason"].startswith("SIGTERM")
    assert newest_checkpoint(run).name == "step-1"
    assert find_damage(newest_checkpoint(run)) is None
    assert (
        server.run(
            "train", "--out", run, "--config", run.with_suffix(".json"), "--continue", "--no-report"
        ).code
        == 0
    )
    assert differences(run, whole) == []


@pytest.mark.parametrize("place", ["update, between two minibatches", "checkpoint, model written"])
def test_a_step_that_takes_too_long_is_abandoned(server, small_config, whole, tmp_path, place):
    """A scheduler's grace period ends with SIGKILL; `checkpoint.stop_seconds` makes use of it before that."""
    run = tmp_path / "run"
    ended = server.train(
        small_config("pivot", *SETTINGS, "checkpoint.every=1", "checkpoint.stop_seconds=0.5"),
        run,
        hang_point=place,
        signals=[("SIGTERM", "hanging at")],
    )
    assert ended.code == 3, ended.said
    assert status(run)["reason"] == "SIGTERM, step abandoned after 0.5 s"
    assert newest_checkpoint(run).name == "step-1"
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-1"]
    assert server.resume(run).code == 0
    assert repeatable_rows(run) == repeatable_rows(whole)


@pytest.mark.parametrize(("minutes", "saved"), [("0.00001", ["step-2", "step-3"]), ("30", ["step-3"])])
def test_long_steps_are_saved_before_too_much_is_at_stake(server, small_config, tmp_path, minutes, saved):
    run = tmp_path / "run"
    config = small_config("pivot", *SETTINGS, "checkpoint.every=100", f"checkpoint.minutes={minutes}")
    assert server.train(config, run).code == 0
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == saved


def test_before_the_first_step_there_is_nothing_to_finish(server, small_config, tmp_path):
    run = tmp_path / "run"
    config = small_config("pivot", *SETTINGS, "data.size=512")
    ended = server.train(config, run, signals=[("SIGTERM", "loading tiny")])
    assert ended.code == 3, ended.said
    assert not (run / "metrics.jsonl").exists()
    assert status(run)["status"] == "stopped"


STUBBORN = """
import os, runpy, signal, sys, time
names = runpy.run_path(sys.argv[1])
names["Stopping"].__enter__.__globals__["LAST_SECONDS"] = 0.2
with names["Stopping"](0.2) as stopping:
    stopping.stepping = True
    os.kill(os.getpid(), signal.SIGTERM)
    while True:
        try:
            time.sleep(600)
        except BaseException as swallowed:
            print(type(swallowed).__name__, flush=True)
"""


def test_something_that_does_not_let_go_cannot_keep_the_process_alive():
    """A library that swallows every exception, say."""
    ended = subprocess.run(
        [sys.executable, "-c", STUBBORN, stopping.__file__], capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, ended.stdout) == (3, "Stopped\n")
