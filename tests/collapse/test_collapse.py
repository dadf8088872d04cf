"""When a run counts as collapsed, and what is predicted from another."""

import json

import pytest

from experiments.collapse.__main__ import PLAN, main, measured
from experiments.collapse.collapse import collapse_step, predicted_step, push, table
from pivot.sweep.plan import load_plan
from pivot.sweep.runs import plan_runs

STUDY = PLAN.parent.parent / "tiny_world" / "results"


def test_the_step_of_a_collapse_by_hand():
    assert collapse_step([0.5] * 40 + [0.1] * 5) == 45
    assert collapse_step([0.5] * 40 + [0.31] * 5) is None, "more than 60% of the highest"
    assert collapse_step([0.9] * 5 + [0.1] * 5 + [0.95] * 90) is None, "the first steps are too early to tell"
    assert collapse_step([0.2] * 20 + [0.8] * 20 + [0.5] * 20 + [0.4] * 5) == 65
    assert collapse_step([0.5] * 42 + [0.0] * 2) is None, "an unfinished window says nothing"


def test_the_push_is_beta_times_the_learning_rate_unless_it_is_weighed(tmp_path):
    plan = load_plan(PLAN)
    assert {run.arm: push(run.config) for run in plan_runs(plan, tmp_path)} == {
        "VAA, beta 2": 2.0,
        "VAA, beta 1": 1.0,
        "VAA, beta 1, half the rate": 0.5,
        "VAA, beta 0.5": 0.5,
        "VAA, beta 0.5, twice the rate": 1.0,
        "VAA, beta 0.25": 0.25,
        "VAA weighed, beta 2": 0.0,
        "VAA weighed, beta 1": 0.0,
    }


def test_the_table_predicts_from_beta_1_alone(tmp_path):
    plan = load_plan(PLAN)

    def one(arm, strength, seed, collapse):
        return {"arm": arm, "seed": seed, "push": strength, "steps": 400, "collapse": collapse}

    known = {f"a{seed}": one("VAA, beta 1", 1.0, seed, step) for seed, step in enumerate((60, 80, None))}
    assert predicted_step(known, "VAA, beta 1") == 80, "one that never collapsed counts with its length"
    known |= {"b": one("VAA, beta 0.25", 0.25, 0, 310), "c": one("VAA weighed, beta 2", 0.0, 0, None)}
    rows = {row.label: row.values for row in table(plan, known).rows}
    assert list(rows) == ["VAA, beta 1", "VAA, beta 0.25", "VAA weighed, beta 2"]
    assert rows["VAA, beta 0.25"] == (0.25, "320", "310")
    assert rows["VAA, beta 1"] == (1.0, None, "60, 80, not in 400")
    assert rows["VAA weighed, beta 2"] == (0.0, None, "not in 400")


def test_finished_runs_are_kept_when_their_folders_are_gone(tmp_path, capsys):
    run = plan_runs(load_plan(PLAN), tmp_path / "runs")[0]
    run.folder.mkdir(parents=True)
    (run.folder / "run.json").write_text(json.dumps({"status": "finished"}))
    rows = [{"step": step, "reward/accuracy": 0.5 if step <= 40 else 0.0} for step in range(1, 61)]
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = measured(run)
    assert (found["collapse"], found["steps"], found["push"]) == (45, 60, pytest.approx(2.0))
    words = ["--results", str(tmp_path / "results.json")]
    assert main([*words, "--runs", str(tmp_path / "runs")]) == 0
    first = capsys.readouterr().out
    assert main([*words, "--runs", str(tmp_path / "elsewhere")]) == 0
    assert capsys.readouterr().out == first
    assert "| VAA, beta 2 | 2.00 |" in first


@pytest.mark.parametrize(
    ("cells", "said"),
    [("main-pivot-beta-1.0-seed-*", [55, 85, 110]), ("main-dapo-perception-coef-0.8-seed-*", [55, 65, 90])],
)
def test_the_prediction_starts_from_the_earlier_study(cells, said):
    """The steps that README.md names; the study kept means of five steps."""
    found = [json.loads(path.read_bytes())["dynamics"] for path in STUDY.glob(f"{cells}.json")]
    steps = [collapse_step([value for value in one["reward/accuracy"] for _ in range(5)]) for one in found]
    assert sorted(steps) == said
