"""`train.max_responses`: runs that sample differently end after equally many responses."""

import hashlib
import json
import shutil

import pytest
import torch

from pivot.checkpoint_reader import MANIFEST
from pivot.cli import main
from pivot.config import validate
from pivot.errors import UserError
from pivot.runs.run import resume, train
from pivot.training.build import planned_steps

BUDGET = 24
"""Of runs whose round samples 4 prompts x 4 responses."""


def budgeted(small_config, method, *settings, budget=BUDGET):
    sizes = (
        "train.steps=50",
        "train.prompts_per_step=4",
        "train.minibatch_prompts=2",
        "data.size=12",
        "rollout.max_tokens=40",
    )
    return small_config(method, *sizes, f"train.max_responses={budget}", *settings)


ONE_ROUND = ("rollout.max_tries=1", "rollout.oversample=false")


@pytest.mark.parametrize(("method", "settings"), [("dapo", ()), ("ser", ONE_ROUND)])
def test_every_run_ends_when_its_responses_are_sampled(tmp_path, small_config, repeatable, method, settings):
    config = budgeted(small_config, method, "eval.every=10", "eval.samples=1", *settings)
    assert train(config, tmp_path / "run", quiet=True).finished
    rows = repeatable(tmp_path / "run")
    assert rows[-1]["rollout/total_responses"] == BUDGET == 4 * sum(row["rollout/groups"] for row in rows)
    assert rows[-1]["rollout/total_tokens"] == sum(row["rollout/tokens"] for row in rows)
    assert all(row["rollout/total_responses"] < BUDGET for row in rows[:-1])
    assert "eval/accuracy" in rows[-1], "the last step is evaluated, wherever it falls"
    assert (tmp_path / "run" / "checkpoints" / f"step-{len(rows)}").is_dir()
    if settings:
        assert [row["rollout/groups"] for row in rows] == [4, 2]


def test_a_budget_is_raised_with_the_run(tmp_path, small_config, repeatable, capsys):
    run = tmp_path / "run"
    train(budgeted(small_config, "ser", *ONE_ROUND, budget=18), run, quiet=True)
    assert repeatable(run)[-1]["rollout/total_responses"] == 16, "two responses are no group"
    words = ["train", "--resume", str(run), "--quiet", "--no-report"]
    assert main([*words, "--steps", "60"]) == 2
    assert "has used up its budget of 18 responses: raise it too" in capsys.readouterr().err
    assert main([*words, "--set", "train.max_responses=15"]) == 2
    assert "train.max_responses is 15, but the first step alone samples" in capsys.readouterr().err
    assert main([*words, "--set", "train.max_responses=32"]) == 0
    assert "32 responses instead of 18" in capsys.readouterr().out
    assert [row["rollout/total_responses"] for row in repeatable(run)] == [16, 32]
    assert main([*words, "--set", "train.max_responses=20"]) == 2
    assert "has sampled 32 responses, so it cannot end after 20" in capsys.readouterr().err


def test_a_resumed_run_counts_on(tmp_path, small_config, repeatable, weights):
    config = budgeted(small_config, "dapo", "checkpoint.every=1", "checkpoint.keep_last=9", *ONE_ROUND)
    train(config, tmp_path / "whole", quiet=True)
    rows = repeatable(tmp_path / "whole")
    for name in ("cut", "of an older version"):
        run = tmp_path / name
        shutil.copytree(tmp_path / "whole", run)
        shutil.rmtree(run / "checkpoints" / "step-2")
        status = json.loads((run / "run.json").read_bytes())
        (run / "run.json").write_text(json.dumps({**status, "status": "running", "saved_step": 1}))
        if name != "cut":
            forget_totals(run / "checkpoints" / "step-1")
        assert resume(run, quiet=True).finished
        assert repeatable(run) == rows
        a, b = weights(tmp_path / "whole"), weights(run)
        assert all(torch.equal(a[key], b[key]) for key in a)


def forget_totals(checkpoint):
    """As a version without budgets wrote it."""
    state = json.loads((checkpoint / "state.json").read_bytes())
    assert state.pop("sampled")["responses"] == 16
    raw = json.dumps(state).encode()
    (checkpoint / "state.json").write_bytes(raw)
    manifest = json.loads((checkpoint / MANIFEST).read_bytes())
    manifest["files"]["state.json"] = {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    (checkpoint / MANIFEST).write_text(json.dumps(manifest))


def test_a_budget_below_one_round_is_refused(small_config):
    with pytest.raises(
        UserError, match="is 15, but the first step alone samples 4 prompts x 4 responses = 16"
    ):
        validate(budgeted(small_config, "dapo", budget=15))


def test_the_warm_up_is_a_share_of_the_steps_that_the_budget_pays_for(small_config):
    assert planned_steps(budgeted(small_config, "ser", budget=100)) == 7
    assert planned_steps(budgeted(small_config, "ser", budget=10_000)) == 50
    assert planned_steps(small_config("ser")) == 3
