"""Whole runs through verl's `main_ppo` on CPUs: two FSDP2 ranks with a stop in the middle, and one that is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("verl")

STEPS = 12
LISTS = ("answers/top", "answers/differing")


def rows_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def repeatable(row: dict) -> dict:
    return {k: v for k, v in row.items() if not k.startswith(("time/", "memory/"))}


@pytest.fixture(scope="module")
def stopped_and_resumed(start):
    """PIVOT on two ranks: SIGTERM after four steps, then on to the end."""
    run = start("pivot", "--gpus", "2", settings=[f"train.steps={STEPS}", "checkpoint.every=100", *LEARNING])
    run.wait_for(4)
    run.process.send_signal(signal.SIGTERM)
    code = run.finish()
    first = {
        "code": code,
        "said": run.said(),
        "status": json.loads((run.out / "run.json").read_text()),
        "steps": run.steps,
    }
    again = start("pivot", "--resume", str(run.out))
    code = again.finish()
    return run.out, first, code, again.said()


LEARNING = [
    "train.lr=4e-4",
    "eval.final_prompts=24",
    "eval.final_samples=4",
    "eval.sets=[test]",
    "eval.blank=false",
]


def test_a_signal_saves_and_stops_and_resuming_goes_on(stopped_and_resumed):
    run, first, code, said = stopped_and_resumed
    assert first["code"] == 3, first["said"]
    assert first["status"]["status"] == "stopped"
    assert first["status"]["reason"] == "SIGTERM"
    assert 4 <= first["steps"] < STEPS
    assert code == 0, said
    assert [row["step"] for row in rows_of(run)] == list(range(1, STEPS + 1))
    status = json.loads((run / "run.json").read_text())
    assert (status["status"], status["engine"], status["verl"]) == ("finished", "verl", "0.9.1")


def test_the_drivers_state_was_saved_and_taken_up_again(stopped_and_resumed):
    """Buffer, gate, data position and step of the stop; the run went on from them."""
    from pivot.experience import ExperienceBuffer
    from pivot.experience.storage import load_state

    run, first, _, _ = stopped_and_resumed
    rows, step = rows_of(run), first["steps"]
    saved = run / "checkpoints" / f"step-{step}"
    state = json.loads((saved / "state.json").read_text())
    assert state["step"] == step
    buffer = ExperienceBuffer(responses_per_prompt=6)
    buffer.load_state_dict(load_state(saved / "buffer"))
    assert len(buffer) == rows[step - 1]["buffer/size"]
    after = json.loads((run / "checkpoints" / f"step-{STEPS}" / "state.json").read_text())
    assert after["gate"] == state["gate"]
    assert rows[step]["buffer/size"] >= len(buffer)
    assert (after["stream"]["epoch"], after["stream"]["position"]) > (
        state["stream"]["epoch"],
        state["stream"]["position"],
    )
    assert f"resuming after step {step} of {STEPS}" in (run / "progress.log").read_text()


def test_replay_anchors_and_buffer_are_at_work(stopped_and_resumed):
    rows = rows_of(stopped_and_resumed[0])
    sizes = [row["buffer/size"] for row in rows]
    assert sizes == sorted(sizes)
    assert sizes[-1] > sizes[0] > 0
    active = [row for row in rows if row["buffer/replay_active"]]
    assert len(active) >= 6
    assert all(0 <= row["buffer/replay_share"] <= 0.75 for row in active)
    assert any(row["buffer/replay_share"] > 0 for row in active)
    assert any(row.get("visual/dependency", 0) > 0 for row in active)
    assert any(row.get("loss/calibration", 0) > 0 for row in active)
    assert all(row["optim/updates"] >= 1 and row["optim/skipped_updates"] == 0 for row in rows)
    assert all(0 <= row["reward/accuracy"] <= 1 for row in rows)


def test_the_run_is_the_local_engines(stopped_and_resumed, tmp_path):
    """Never stopped, one process: the same prompts, responses, anchors and numbers, to rounding."""
    from pivot.config import from_dict
    from pivot.runs.run import train

    run = stopped_and_resumed[0]
    config = from_dict(json.loads((run / "config.json").read_text()))
    steps = 6
    config = replace(
        config, train=replace(config.train, steps=steps), eval=replace(config.eval, final_prompts=0)
    )
    # The gate depends on the whole run's number of steps.
    share = config.method.settings()["warmup_share"] * STEPS / steps
    config = replace(config, method=config.method.with_settings(warmup_share=min(1.0, share)))
    train(config, tmp_path / "local", quiet=True)
    same = 0
    for ours, theirs in zip(rows_of(tmp_path / "local"), rows_of(run), strict=False):
        ours, theirs = repeatable(ours), repeatable(theirs)
        if ours["rollout/tokens"] != theirs["rollout/tokens"]:
            break  # one token, drawn within rounding of its neighbour, is another one; from here on they go apart
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            expected = value if name in LISTS else pytest.approx(value, rel=1e-3, abs=1e-3)
            assert theirs[name] == expected, f"step {ours['step']}: {name}"
        same += 1
    assert same >= 3


def test_learning_is_visible(stopped_and_resumed):
    run = stopped_and_resumed[0]
    scores = json.loads((run / "eval" / "scores.json").read_text())["evaluations"]
    by_moment = {entry["when"]: entry["accuracy"] for entry in scores}
    assert by_moment["after"] > by_moment["before"] + 0.05


def test_a_checkpoint_is_a_hugging_face_folder_with_the_drivers_state(stopped_and_resumed):
    from transformers import AutoModelForImageTextToText

    run = stopped_and_resumed[0]
    newest = run / "checkpoints" / f"step-{STEPS}"
    model = AutoModelForImageTextToText.from_pretrained(newest / "model")
    weights = load_file(newest / "model" / "model.safetensors")
    assert all(bool(torch.isfinite(w).all()) and w.dtype == torch.float32 for w in weights.values())
    assert sum(p.numel() for p in model.parameters()) > 1_500_000
    state = json.loads((newest / "state.json").read_text())
    assert state["step"] == STEPS
    assert (newest / "buffer" / "experience.safetensors").is_file()
    assert len(list((newest / "shards").glob("shard-*.safetensors"))) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("report",),
        ("buffer",),
        ("eval", "--benchmarks", "tiny-test", "--samples", "1", "--limit", "4", "--model"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_the_other_commands_read_its_folder(stopped_and_resumed, arguments):
    run = stopped_and_resumed[0]
    done = subprocess.run(
        [sys.executable, "-m", "pivot", *arguments, str(run)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert (run / "report.html").stat().st_size > 10_000


@pytest.fixture(scope="module")
def killed(start):
    """DAPO on one rank; after seven steps its worker is killed with -9."""
    run = start(
        "dapo", "--gpus", "1", "--method", "dapo", settings=["train.steps=1000", "checkpoint.every=5"]
    )
    run.wait_for(7)
    worker = json.loads((run.out / "run.json").read_text())["ranks"][0]["process"]
    os.kill(worker, signal.SIGKILL)
    since = time.time()
    code = run.finish()
    return run, code, (run.out / "run.json").stat().st_mtime - since, worker


def test_a_killed_worker_is_named_within_a_minute(killed):
    run, code, seconds, worker = killed
    assert code == 2
    # A minute, on a machine that has nothing else to do.
    assert seconds < 60 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    status = json.loads((run.out / "run.json").read_text())
    assert status["status"] == "failed"
    assert status["reason"].startswith(f"rank 0 (process {worker} on ")
    assert "has died" in status["reason"]
    assert status["reason"] in run.said()
    assert "Traceback" not in run.out.with_suffix(".out").read_text()


def test_dapo_trains_on_one_rank(killed):
    rows = rows_of(killed[0].out)
    assert len(rows) >= 7
    assert all("buffer/size" not in row and row["optim/updates"] >= 1 for row in rows)
    assert all(0 < row["reward/accuracy"] < 1 and row["optim/grad_norm"] > 0 for row in rows)
    assert (killed[0].out / "checkpoints" / "step-5" / "shards").is_dir()
