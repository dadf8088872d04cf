"""`pivot train --resume`: contradicting options are refused, and a run can be extended, finished or not."""

import json
import shutil

import pytest
import torch

import pivot
from pivot.cli import main
from pivot.errors import UserError
from pivot.runs.run import train


@pytest.fixture(scope="module")
def finished(tmp_path_factory, small_config):
    """A run of two steps with a before/after table."""
    out = tmp_path_factory.mktemp("resume") / "run"
    train(config(small_config, 2), out, quiet=True)
    return out


def config(small_config, steps):
    return small_config(
        "pivot", f"train.steps={steps}", "method.warmup_share=0", "eval.final_prompts=2", "eval.final_samples=1",
        "eval.sets=test", "eval.blank=false", "checkpoint.every=1",
    )  # fmt: skip


def state(run):
    return {
        path: path.read_bytes() for path in (run / "config.json", run / "run.json", run / "metrics.jsonl")
    }


def test_contradicting_options_are_refused_with_both_values(finished, capsys):
    before = state(finished)
    asked = ["--steps", "8", "--method", "dapo", "--seed", "7", "--set", "train.lr=1e-5"]
    assert main(["train", "--resume", str(finished), *asked]) == 2
    error = capsys.readouterr().err
    for part in (
        "cannot be resumed with other settings",
        "method is pivot in the run, dapo here",
        "train.seed is 0 in the run, 7 here",
        "train.lr is 0.0002 in the run, 1e-05 here",
    ):
        assert part in error, error
    assert "train.steps" not in error
    assert state(finished) == before


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--recipe", "geo3k-3b"], "recipe is tiny in the run, geo3k-3b here"),
        (["--model", "tiny-hard"], "model.path is tiny in the run, tiny-hard here"),
        (["--data", "geometry3k"], "data.train is tiny in the run, geometry3k here"),
        (["--reward", "rw:f"], "reward.functions is [] in the run, [rw:f] here"),
        (["--steps", "1"], "has taken 2 of its 2 steps, so it cannot end after 1"),
        (["--engine", "verl"], "runs on its own engine, nodes and settings; leave out --engine verl"),
        (["--gpus", "2"], "leave out --gpus"),
        (["--out", "x"], "--resume continues in the run's own folder"),
        (["--seed", "-1"], "train.seed is -1, but must be at least 0"),
    ],
)
def test_nothing_is_ignored(finished, capsys, options, sentence):
    before = state(finished)
    assert main(["train", "--resume", str(finished), *options]) == 2
    assert sentence in capsys.readouterr().err
    assert state(finished) == before


def test_agreeing_options_are_accepted(finished, capsys):
    given = ["--recipe", "tiny", "--method", "pivot", "--seed", "0", "--steps", "2", "--no-report"]
    assert main(["train", "--resume", str(finished), *given]) == 0
    assert f"{finished} is finished." in capsys.readouterr().out


def test_continue_compares_too(finished, capsys):
    assert main(["train", "--out", str(finished), "--continue", "--seed", "7"]) == 2
    assert "train.seed is 0 in the run, 7 here" in capsys.readouterr().err


def test_a_finished_run_is_extended(finished, tmp_path, small_config, repeatable, weights, capsys):
    before = json.loads((finished / "eval" / "scores.json").read_bytes())["evaluations"]
    assert main(["train", "--resume", str(finished), "--steps", "4", "--quiet", "--no-report"]) == 0
    assert "4 steps instead of 2" in capsys.readouterr().out
    status = json.loads((finished / "run.json").read_bytes())
    assert (status["status"], status["reason"]) == ("finished", None)
    assert json.loads((finished / "config.json").read_bytes())["train"]["steps"] == 4
    train(config(small_config, 4), tmp_path / "whole", quiet=True)
    assert repeatable(finished) == repeatable(tmp_path / "whole")
    a, b = weights(finished), weights(tmp_path / "whole")
    assert all(torch.equal(a[name], b[name]) for name in a)
    after = {
        e["when"]: e for e in json.loads((finished / "eval" / "scores.json").read_bytes())["evaluations"]
    }
    assert set(after) == {"before", "step-2", "after"}
    old = {e["when"]: e for e in before}
    assert after["step-2"] == {**old["after"], "when": "step-2"}, "the old numbers keep their step"
    assert after["before"] == old["before"]
    card = (finished / "checkpoints" / "step-4" / "model" / "README.md").read_text()
    assert "4 of 4 steps" in card


def test_an_extension_that_is_refused_changes_nothing(finished, tmp_path, capsys):
    run = shutil.copytree(finished, tmp_path / "run")
    (run / "metrics.jsonl").write_text((run / "metrics.jsonl").read_text().partition("\n")[2])
    before = {name: (run / name).read_bytes() for name in ("config.json", "run.json", "eval/scores.json")}
    assert main(["train", "--resume", str(run), "--steps", "9", "--quiet", "--no-report"]) == 2
    assert "--accept-lost-history" in capsys.readouterr().err
    assert {name: (run / name).read_bytes() for name in before} == before


def test_a_stopped_run_is_extended_from_python(tmp_path, small_config, repeatable):
    class Stop(pivot.Callback):
        def on_step(self, step, metrics):
            raise RuntimeError("enough")

    with pytest.raises(UserError, match="enough"):
        pivot.train(small_config("dapo", "checkpoint.every=1"), tmp_path, callbacks=[Stop()], quiet=True)
    result = pivot.resume(tmp_path, steps=2, quiet=True)
    assert (result.steps, result.finished) == (2, True)
    assert [row["step"] for row in repeatable(tmp_path)] == [1, 2]
    with pytest.raises(UserError, match=r"train\.steps is 'many'"):
        pivot.resume(tmp_path, steps="many")
    with pytest.raises(UserError, match="holds no run"):
        pivot.resume(tmp_path / "none", steps=3)
