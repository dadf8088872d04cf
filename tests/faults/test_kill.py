"""SIGKILL anywhere: the run goes on as if it had never been killed, bit for bit."""

import json

import pytest
from fault_harness import differences, newest_checkpoint, repeatable_rows
from kill_points import POINTS

from pivot.runs.checkpoint import CheckpointStore

SETTINGS = (
    "train.steps=6",
    "train.prompts_per_step=2",
    "train.minibatch_prompts=1",
    "rollout.max_tokens=40",
    "method.dynamic_sampling=false",  # every step scores and updates, on any machine
    "log.rollouts_per_step=1",
    "log.rollouts_every=1",
    "checkpoint.every=1",
)
ROUNDS = [list(POINTS)[0::2], list(POINTS)[1::2]]
"""Every point once, in two runs: a run of 6 steps dies 8 or 9 times."""


@pytest.fixture(scope="module")
def whole(server, small_config, tmp_path_factory):
    """The run that was never killed."""
    out = tmp_path_factory.mktemp("whole") / "run"
    ended = server.train(small_config("pivot", *SETTINGS), out)
    assert ended.code == 0, ended.said
    rows = repeatable_rows(out)
    assert any(row["buffer/replay_share"] > 0 for row in rows), "it replays"
    assert sum(row["optim/updates"] for row in rows) > 5, "it learns"
    return out


@pytest.mark.parametrize("points", ROUNDS, ids=["first", "second"])
def test_killed_at_every_point_it_ends_as_if_it_never_had_been(server, small_config, whole, tmp_path, points):
    run = tmp_path / "run"
    first, *others = points
    died = server.train(small_config("pivot", *SETTINGS), run, kill_point=first)
    for point in [*others, None]:
        assert died.was_killed, f"{died.code}: {died.said[-2000:]}"
        damage: list[str] = []
        CheckpointStore(run).latest_good(report=damage.append)
        assert damage == [], "what stands under a checkpoint's name is whole"
        died = server.resume(run, kill_point=point)
    assert died.code == 0, died.said
    assert differences(run, whole) == []
    assert json.loads((run / "run.json").read_text())["status"] == "finished"
    leftovers = [path.name for path in run.rglob(".*") if path.is_file() or path.name.startswith(".tmp")]
    assert leftovers == []


def test_killed_before_the_first_checkpoint_it_begins_again(server, small_config, tmp_path):
    settings = ("train.steps=3", "checkpoint.every=3")
    server.train(small_config("pivot", *settings), tmp_path / "whole")
    died = server.train(small_config("pivot", *settings), tmp_path / "run", kill_point="rollout")
    assert died.was_killed
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert server.resume(tmp_path / "run").code == 0
    assert differences(tmp_path / "run", tmp_path / "whole") == []
    assert newest_checkpoint(tmp_path / "run").name == "step-3"


def test_a_difference_would_be_seen(whole, tmp_path):
    """The comparison that the others rest on: one flipped bit in the buffer, one row of metrics."""
    import shutil

    other = tmp_path / "other"
    shutil.copytree(whole, other)
    assert differences(whole, other) == []
    file = newest_checkpoint(other) / "buffer" / "experience.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    lines = (other / "metrics.jsonl").read_text().splitlines()
    (other / "metrics.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    assert differences(whole, other) == ["metrics.jsonl", "buffer/experience.safetensors"]
