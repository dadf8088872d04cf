"""Whole runs: repetition, resumption, replay over many steps, and what goes wrong."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file

from pivot.config import apply_settings, to_dict
from pivot.errors import UserError
from pivot.models.loading import load_policy
from pivot.runs.run import resume, train


def rollout_lines(run):
    return (run / "rollouts.jsonl").read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory, small_config):
    """A run of four steps that was never stopped, and its configuration."""
    settings = ("train.steps=4", "method.warmup_share=0", "checkpoint.every=1", "checkpoint.keep_last=3",
                "rollout.max_tries=2", "rollout.max_tokens=64", "log.rollouts_per_step=2", "log.rollouts_every=1",
                "eval.every=2")  # fmt: skip
    run, config = tmp_path_factory.mktemp("whole") / "run", small_config("pivot", *settings)
    train(config, run, quiet=True)
    return run, config


def assert_equal(run, other, repeatable, weights):
    assert repeatable(run) == repeatable(other)
    assert rollout_lines(run) == rollout_lines(other)
    a, b = weights(run), weights(other)
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_seed_fixes_a_run_bit_for_bit(tmp_path, whole, repeatable, weights):
    run, config = whole
    train(config, tmp_path / "again", quiet=True)
    assert_equal(run, tmp_path / "again", repeatable, weights)
    config = apply_settings(config, ["train.seed=1", "train.steps=1"])
    train(config, tmp_path / "other", quiet=True)
    first, other = repeatable(run)[0], repeatable(tmp_path / "other")[0]
    assert first["rollout/length_mean"] != other["rollout/length_mean"]
    assert first["rollout/entropy"] != other["rollout/entropy"]


def test_replay_over_fifteen_steps(tmp_path, small_config, repeatable):
    """SER as specified: gate, share, filter, top-up, p-hat of replayed prompts, ages."""
    config = small_config(
        "ser", "train.steps=15", "train.prompts_per_step=4", "train.minibatch_prompts=2",
        "method.warmup_share=0.2", "method.solved_threshold=0.999",
    )  # fmt: skip
    train(config, tmp_path / "run", quiet=True)
    rows = repeatable(tmp_path / "run")
    assert len(rows) == 15
    active = [row["buffer/replay_active"] for row in rows]
    assert active == [0.0] * 3 + [1.0] * 12, "the cap of 20% of the steps opens the gate, and it stays open"
    assert all(row["buffer/replay_share"] == 0 for row in rows[:3])
    assert all(row["buffer/size"] > 0 for row in rows[1:])
    later = [row for row in rows[3:] if row["rollout/groups_kept"]]
    assert all(row["buffer/replay_share"] <= 0.5 or row["rollout/groups_kept"] < 4 for row in later)
    assert sum(row["buffer/replay_share"] for row in later) / len(later) > 0.3
    for row in rows:
        parts = [row[f"rollout/groups_{part}"] for part in ("kept", "dropped", "surplus")]
        assert sum(parts) == row["rollout/groups"]
        assert row["rollout/groups_kept"] <= 4
        assert row["rollout/tries"] <= config.rollout.max_tries + 1
        assert row["buffer/eligible"] <= row["buffer/size"] <= 24
        assert sum(row["buffer/success_histogram"]) == row["buffer/size"]
        assert row["buffer/score_age"] == 0, "scored under today's weights"
    assert any(row.get("loss/calibration", 0) > 0 for row in later)
    assert max(row.get("buffer/times_drawn", 0) for row in later) > 1
    assert max(row.get("buffer/anchor_age", 0) for row in later) > 1


def test_stop_and_resume_equals_never_having_stopped(tmp_path, whole, repeatable, weights):
    resume_after_step_two(whole[0], tmp_path / "cut", repeatable, weights)


@pytest.mark.parametrize("method", ["pivot-grpo", "dr-grpo+pivot+noisy+ssr"])
def test_other_methods_stop_and_resume_too(tmp_path, small_config, repeatable, weights, method):
    settings = ("train.steps=4", "method.warmup_share=0", "checkpoint.every=2", "log.rollouts_per_step=1",
                "log.rollouts_every=1", "eval.every=2")  # fmt: skip
    train(small_config(method, *settings), tmp_path / "whole", quiet=True)
    resume_after_step_two(tmp_path / "whole", tmp_path / "cut", repeatable, weights)


def resume_after_step_two(whole, cut, repeatable, weights):
    """As if the process had died in step 4: the metrics are ahead of the checkpoint."""
    shutil.copytree(whole, cut)
    for checkpoint in (cut / "checkpoints").glob("step-[34]"):
        shutil.rmtree(checkpoint)
    resume(cut, quiet=True)
    assert_equal(cut, whole, repeatable, weights)
    whole, cut = (run / "checkpoints" / "step-4" for run in (whole, cut))
    for file in ("buffer/experience.safetensors", "optimizer.safetensors"):
        assert _same_arrays(whole / file, cut / file)
    assert (whole / "state.json").read_bytes() == (cut / "state.json").read_bytes()


@pytest.mark.parametrize(
    "forms",
    [
        ("model.lora_rank=4", "train.lr=1e-2"),
        ("model.dtype=bfloat16",),
        ("model.freeze_vision=true", "model.gradient_checkpointing=true"),
    ],
    ids=["lora", "bfloat16", "frozen"],
)
def test_every_form_of_a_model_trains_and_resumes_exactly(tmp_path, small_config, repeatable, weights, forms):
    settings = ("train.steps=2", "train.prompts_per_step=4", "train.minibatch_prompts=2", "method.warmup_share=0",
                "checkpoint.every=1", *forms)  # fmt: skip
    train(small_config("pivot", *settings), tmp_path / "whole", quiet=True)
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut" / "checkpoints" / "step-2")
    resume(tmp_path / "cut", quiet=True)
    assert repeatable(tmp_path / "cut") == repeatable(tmp_path / "whole")
    a, b = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(a[name], b[name]) for name in a)
    start, end = (load_policy(name).model.state_dict() for name in ("tiny", str(tmp_path / "whole")))
    moved = {name for name in start if not torch.equal(start[name], end[name])}
    assert any("language_model.layers" in name for name in moved), "it trains"
    if "model.freeze_vision=true" in forms:
        assert not any("visual" in name for name in moved)


def _same_arrays(a, b):
    """The files' own bytes may differ in the order of their header."""
    left, right = load_file(a), load_file(b)
    return left.keys() == right.keys() and all(left[name].tobytes() == right[name].tobytes() for name in left)


def start(config, out):
    """The trainer in a process of its own."""
    out.parent.mkdir(parents=True, exist_ok=True)
    file = out.with_suffix(".json")
    file.write_text(json.dumps(to_dict(config)))
    return _launch("--config", str(file), "--out", str(out), "--no-report")


def _launch(*arguments):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "pivot", "train", *arguments]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_for_steps(process, run, num_steps, patience=240.0):
    deadline = time.monotonic() + patience
    metrics = run / "metrics.jsonl"
    while time.monotonic() < deadline:
        if metrics.exists() and metrics.read_text().count("\n") >= num_steps:
            return
        if process.poll() is not None:
            pytest.fail(f"the trainer ended: {process.stdout.read()}")
        time.sleep(0.01)
    process.kill()
    pytest.fail("the trainer made no progress")


@pytest.mark.parametrize(("step", "delay"), [(1, 0.0), (2, 0.25)])
def test_killed_in_the_middle_it_goes_on_as_if_it_never_had_been(
    tmp_path, server, whole, repeatable, weights, step, delay
):
    """Right behind the metrics' line comes the checkpoint's writing; later the next step is under way."""
    run, config = whole
    killed = tmp_path / "killed"
    line = {"signals": [("SIGKILL", f'"step": {step}')], "watched": str(killed / "metrics.jsonl")}
    ended = server.train(config, killed, **line, signal_delay=delay)
    assert ended.was_killed, ended.said
    resume(killed, quiet=True)
    assert_equal(killed, run, repeatable, weights)


def test_an_interrupt_saves_and_says_how_to_go_on(tmp_path, small_config, repeatable):
    config = small_config("dapo", "train.steps=500", "checkpoint.every=1000")
    process = start(config, tmp_path / "run")
    wait_for_steps(process, tmp_path / "run", 1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 3
    assert f"pivot train --resume {tmp_path / 'run'}" in output
    assert "Traceback" not in output
    steps = [row["step"] for row in repeatable(tmp_path / "run")]
    assert (tmp_path / "run" / "checkpoints" / f"step-{steps[-1]}").is_dir()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "stopped"


def test_nothing_informative_is_said_and_the_run_goes_on(tmp_path, small_config, repeatable, weights, capsys):
    config = small_config("pivot", "reward.function=own_rewards:always")
    train(config, tmp_path / "run")
    rows = repeatable(tmp_path / "run")
    assert [row["optim/updates"] for row in rows] == [0, 0, 0]
    assert all(row["rollout/groups_kept"] == 0 for row in rows)
    assert "no group has both right and wrong responses" in capsys.readouterr().out


def test_all_responses_truncated_is_seen(tmp_path, small_config, repeatable):
    train(small_config("pivot", "rollout.max_tokens=2", "train.steps=1"), tmp_path / "run", quiet=True)
    (row,) = repeatable(tmp_path / "run")
    assert row["rollout/truncated_share"] == 1
    assert row["reward/accuracy"] == 0
    assert row["buffer/size"] == 0


def test_a_set_smaller_than_a_step_is_refused(tmp_path, small_config):
    with pytest.raises(UserError, match=r"has 4 training prompts.*--set train.prompts_per_step=4"):
        train(small_config("dapo", "data.size=4"), tmp_path / "run", quiet=True)


def test_a_users_own_reward(tmp_path, small_config, repeatable):
    config = small_config("dapo", "reward.function=own_rewards:by_length", "train.steps=2")
    train(config, tmp_path / "run", quiet=True)
    assert all(0 < row["reward/accuracy"] < 1 for row in repeatable(tmp_path / "run"))


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("own_rewards:too_few", "returned 1 values for 24 responses"),
        ("own_rewards:raises", "raised KeyError"),
        ("own_rewards:never", "did not return within 0.5 s"),
        ("own_rewards:missing", "own_rewards has no reward function 'missing'"),
        (
            "no.such.module:f",
            "There is no module 'no' on Python's path for the reward function no.such.module",
        ),
        ("rewards", "'rewards' is not a reward function: write package.module:name or path/to/file.py:name"),
    ],
)
def test_a_broken_reward_is_named(tmp_path, small_config, function, sentence):
    # Long enough for a busy machine, but for the one that is to run out of it.
    seconds = 0.5 if function == "own_rewards:never" else 60
    config = small_config("dapo", f"reward.function={function}", f"reward.timeout={seconds}")
    with pytest.raises(UserError, match=sentence):
        train(config, tmp_path / "run", quiet=True)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "failed"


def custom_rows(folder, num_rows):
    """A JSON lines data set with one image a row."""
    rows = []
    for i in range(num_rows):
        Image.new("RGB", (84, 84), (10 * i, 200, 100)).save(folder / f"{i}.png")
        rows.append(
            {"id": f"row-{i}", "problem": f"<image>What is {i}?", "answer": str(i), "images": [f"{i}.png"]}
        )
    return rows


def test_one_file_is_never_its_own_held_out_set(tmp_path, small_config, repeatable, capsys):
    for name in ("train", "held"):
        (tmp_path / name).mkdir()
        rows = custom_rows(tmp_path / name, 8)
        (tmp_path / name / f"{name}.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    settings = (f"data.train={tmp_path / 'train' / 'train.jsonl'}", "data.size=null", "train.steps=1", "eval.every=1",
                "eval.final_prompts=2", "eval.final_samples=2", "reward.function=own_rewards:by_length")  # fmt: skip
    train(small_config("dapo", *settings, "data.holdout=0"), tmp_path / "alone")
    assert "nothing is held out" in capsys.readouterr().out
    assert "eval/accuracy" not in repeatable(tmp_path / "alone")[0]
    assert not (tmp_path / "alone" / "eval" / "scores.json").exists()
    held = f"data.validation={tmp_path / 'held' / 'held.jsonl'}"
    train(small_config("dapo", *settings, held), tmp_path / "watched", quiet=True)
    assert "eval/accuracy" in repeatable(tmp_path / "watched")[0]
    scores = json.loads((tmp_path / "watched" / "eval" / "scores.json").read_text())["evaluations"]
    assert {(e["when"], e["blank"]) for e in scores} == {
        *(("before", False), ("before", True), ("after", False), ("after", True))
    }
    assert len({e["name"] for e in scores}) == 1
    with pytest.raises(UserError):
        train(
            small_config("dapo", *settings, "data.validation=/no/such.jsonl"), tmp_path / "wrong", quiet=True
        )


def test_rows_that_cannot_be_used_are_named(tmp_path, small_config, repeatable, capsys):
    rows = custom_rows(tmp_path, 9)
    del rows[3]["answer"]
    (tmp_path / "5.png").write_bytes(b"\x89PNG but not really")
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    settings = (f"data.train={path}", "data.size=null", "train.steps=1",
                "reward.function=own_rewards:by_length")  # fmt: skip
    train(small_config("dapo", *settings), tmp_path / "run")
    said = capsys.readouterr().out
    assert "2 of 9 rows left out" in said
    assert "row-3" in said
    assert "row-5" in said
    assert len(repeatable(tmp_path / "run")) == 1
    with pytest.raises(UserError, match="row-3"):
        train(small_config("dapo", *settings, "data.bad_rows=refuse"), tmp_path / "refused", quiet=True)


def test_an_image_that_breaks_later_costs_its_prompt_not_the_run(tmp_path, small_config, repeatable, capsys):
    rows = custom_rows(tmp_path, 6)
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    config = small_config(
        "dapo", f"data.train={path}", "data.size=null", "train.steps=1", "rollout.max_tries=1",
        "reward.function=own_rewards:by_length",
    )  # fmt: skip
    from pivot.data.images import FileImage

    healthy = FileImage.open
    broken = {"2.png"}

    def open_or_fail(self):
        if Path(self.path).name in broken and _encoding():
            raise OSError("broken data stream")
        return healthy(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileImage, "open", open_or_fail)
        train(config, tmp_path / "run")
    assert "row-2" in capsys.readouterr().out
    assert repeatable(tmp_path / "run")[0]["rollout/groups"] == 5


def _encoding():
    """Whether the image is being opened for the model, not looked at when the data is loaded."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "encode":
            return True
        frame = frame.f_back
    return False
