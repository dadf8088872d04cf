"""Every kind of damage to a run's folder is refused in one sentence, repaired, or named."""

import json
import shutil

import pytest
from damages import DAMAGES, METHOD, SETTINGS, Damage, inflict, make_run, wrong
from fault_harness import differences, repeatable_rows

from pivot.checkpoint_reader import ORIGIN, read_origin
from pivot.runs.checkpoint import MANIFEST, CheckpointStore
from pivot.runs.folder import RunFolder
from pivot.runs.resuming import Accept
from pivot.runs.run import resume


@pytest.fixture(scope="module")
def whole(small_config, tmp_path_factory):
    return make_run(small_config(METHOD, *SETTINGS), tmp_path_factory.mktemp("whole") / "run")


def snapshot(run):
    return {
        path.relative_to(run): path.read_bytes()
        for path in run.rglob("*")
        if path.is_file() and path.name != "run.lock"
    }


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.name.replace(" ", "-"))
def test_damage(damage: Damage, whole, tmp_path):
    run = tmp_path / "run"
    ended = inflict(damage, whole, run)
    assert wrong(damage, ended) == [], ended.said
    if damage.command == "resume" and damage.outcome == "refused":
        untouched = tmp_path / "untouched"
        shutil.copytree(whole, untouched)
        damage.harm(untouched)
        assert snapshot(run) == snapshot(untouched), "a refusal changes nothing"
    elif damage.command == "resume":
        assert differences(run, whole) == []
        assert json.loads((run / "run.json").read_text())["status"] == "finished"
    if damage.outcome == "repaired" and damage.command == "eval":
        entries = [
            json.loads((path / "eval/scores.json").read_text())["evaluations"] for path in (run, whole)
        ]
        assert [(e["name"], e["when"], e["accuracy"]) for e in entries[0]] == [
            (e["name"], e["when"], e["accuracy"]) for e in entries[1]
        ]


def test_what_is_accepted_is_repaired_recorded_and_not_asked_about_again(whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    shutil.rmtree(run / "checkpoints" / "step-3")
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(b"".join([lines[1], b"garbage\n", lines[1], lines[2]]))
    assert resume(run, quiet=True, accept=Accept(lost_history=True)).finished
    assert [row["step"] for row in repeatable_rows(run)] == [2, 3]
    assert (run / "metrics.dropped.jsonl").read_bytes() == lines[1] + b"garbage\n" + lines[2]
    (told,) = json.loads((run / "run.json").read_text())["lost_history"]
    assert told == "step-2: metrics.jsonl: step 1 missing, step 2 repeated, line 2 unreadable"
    assert resume(run, quiet=True).finished, "the new checkpoint records what is left"


def test_checkpoints_of_earlier_versions_resume(whole, tmp_path):
    """They have no origin.json: only missing and repeated steps of the metrics are seen."""
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    for checkpoint in CheckpointStore(run).finished():
        manifest = json.loads((checkpoint.path / MANIFEST).read_text())
        del manifest["files"][ORIGIN]
        (checkpoint.path / MANIFEST).write_text(json.dumps(manifest))
        (checkpoint.path / ORIGIN).unlink()
    (run / "run.json").write_text('{"status": "stopped"}')
    with RunFolder.open(run) as folder:
        assert folder.find_loss(3, None) is None
    assert resume(run, quiet=True).finished
    assert differences(run, whole) == []


def test_a_run_can_be_extended(whole, tmp_path):
    """`train.steps` is the one setting that may change; the new checkpoints belong to the same run."""
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    with RunFolder.open(run) as folder:
        folder.extend({"steps": 4})
    assert resume(run, quiet=True).steps == 4
    origin = read_origin(run / "checkpoints" / "step-4")
    assert origin is not None
    assert origin.config["train"]["steps"] == 4
    assert origin.run == json.loads((whole / "run.json").read_text())["id"]
    assert [step for step, _ in origin.rows["metrics.jsonl"]] == [1, 2, 3, 4]
