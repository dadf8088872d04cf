"""The study's tables: differences to DAPO by success rate, with as many seeds as both arms have."""

import json

import numpy as np
import pytest
from finished_runs import write_run, write_scores

from experiments.rare_success.__main__ import PLAN, RESULTS
from experiments.rare_success.summary import summary
from pivot.sweep.plan import choose_arms, load_plan
from pivot.sweep.runs import plan_runs
from pivot.sweep.statistics import paired_difference

SETS = json.loads((RESULTS / "sets-tiny-hard.json").read_bytes())


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    plan = choose_arms(
        load_plan(PLAN), ["Start", "DAPO, 20%, G=8", "SER, 20%, G=8", "DAPO, 10%, G=8", "SER, 10%, G=8"]
    )
    runs = plan_runs(plan, tmp_path_factory.mktemp("summary") / "runs")
    for run in runs:
        ours = run.arm.startswith("SER")
        if run.seed is not None and run.seed < (3 if ours else 4) and "20%" in run.arm:
            write_run(run, 50 * ours + 10 * run.seed * ours)
            write_scores(run, ["tiny-test", "tiny-ood", "tiny-hard-20"])
    return {table.name: table for table in summary(plan, runs, SETS)}


def test_there_are_tables_for_group_sizes_that_have_runs(tables):
    assert list(tables) == ["accuracy-G=8", "final-G=8", "train-G=8", "rollouts-G=8"]


def test_a_difference_is_paired_by_seed_and_says_how_many(tables):
    rows = {row.label: row.values for row in tables["final-G=8"].rows}
    assert list(rows) == ["40%", "20%", "10%", "5%", "4%"]
    assert rows["10%"] == (None, None)
    base, difference = rows["20%"]
    assert base == pytest.approx(100 * (0.2 + 150 / 500))
    found = paired_difference(np.array([[0.55], [0.56], [0.57]]), np.full((3, 1), 0.5))
    assert difference == f"+6.0 [{100 * found.low:+.1f}, {100 * found.high:+.1f}] (3 of 8)"
    (same,) = [row.values[1] for row in tables["accuracy-G=8"].rows if row.label == "20%"]
    assert same == "+0.0 [+0.0, +0.0] (3 of 8)"


def test_what_replay_changed_in_the_rollouts(tables):
    rows = {row.label: row.values for row in tables["rollouts-G=8"].rows}
    rate, informative, dapo, ser, gain = rows["20%"]
    assert (rate, informative) == (
        pytest.approx(100 * SETS["tiny-hard-20"]["success_rate"]),
        pytest.approx(100 * SETS["tiny-hard-20"]["informative_of_8"]),
    )
    assert dapo == ser == pytest.approx(100 * 6 / 8)
    assert gain == pytest.approx(0.1)
    assert rows["10%"][2:] == (None, None, None)
