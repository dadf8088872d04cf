"""Runs that are there as small files alone give the same tables, and a sweep does not repeat them."""

import shutil

import pytest
from finished_runs import write_run, write_scores

from experiments.archive import collect, file_of, restore, thinned
from experiments.archive import main as main_of_archive
from experiments.rare_success.__main__ import PLAN, RESULTS, main
from pivot.errors import UserError
from pivot.sweep.plan import choose_arms, load_plan
from pivot.sweep.runs import plan_runs
from pivot.sweep.schedule import due_tasks
from pivot.sweep.scores import accuracies, fullness, measure_pair, read_curve

HEADROOM = PLAN.parents[1] / "headroom" / "plan.yaml"
MEASURES = ("final", "best", "area", "area_rollouts", "equal_rollouts", "equal_tokens", "equal_time", "train")


@pytest.fixture(scope="module")
def plan():
    return choose_arms(load_plan(PLAN), ["Start", "DAPO, 20%, G=8", "SER, 20%, G=8"])


def test_restored_runs_are_measured_alike_and_not_repeated(plan, tmp_path):
    runs = plan_runs(plan, tmp_path / "runs")
    start, *trained = runs
    write_scores(start, ["tiny-test", "tiny-ood"])
    for shift, run in enumerate(trained[:-1]):
        write_run(run, 20 * shift)
        write_scores(run, ["tiny-test", "tiny-ood", "tiny-hard-20"])
    pairs = [(measure, trained[0], trained[4]) for measure in MEASURES]
    before = [measure_pair(*pair) for pair in pairs]
    assert None not in before
    curve, full = read_curve(trained[1]), fullness(trained[1])

    written = collect(plan, runs, tmp_path / "results", prune=True)
    assert len(written) == len(runs) - 1, "the last run is not there yet"
    assert all(path.stat().st_size < 20_000 for path in written)
    assert not (trained[0].folder / "checkpoints").exists()
    assert collect(plan, runs, tmp_path / "results") == []

    shutil.rmtree(tmp_path / "runs")
    assert restore(runs, tmp_path / "results") == len(runs) - 1
    assert [measure_pair(*pair) for pair in pairs] == [pytest.approx(pair) for pair in before]
    assert accuracies(start) == {"tiny-test": 0.5, "tiny-ood": 0.6}
    again = read_curve(trained[1])
    assert (again.rollouts, again.accuracy) == (curve.rollouts, curve.accuracy)
    assert again.seconds == pytest.approx(curve.seconds, abs=1e-3)
    assert fullness(trained[1]) == pytest.approx(full)
    assert [task.label for task in due_tasks(plan, runs) if task.next_command()] == [trained[-1].label]
    assert collect(plan, runs, tmp_path / "results") == []
    assert restore(runs, tmp_path / "results") == 0


def test_a_file_with_other_settings_is_refused(plan, tmp_path):
    run = plan_runs(plan, tmp_path / "runs")[1]
    write_run(run, 0)
    write_scores(run, ["tiny-test", "tiny-ood", "tiny-hard-20"])
    (path,) = collect(plan, [run], tmp_path / "results")
    path.write_text(path.read_text().replace("train.threads=1", "train.threads=2"))
    shutil.rmtree(tmp_path / "runs")
    with pytest.raises(UserError, match="has other settings than the plan's run DAPO, 20%, G=8, seed 0"):
        restore([run], tmp_path / "results")


def test_what_screening_left_behind_is_kept_without_scores(tmp_path, capsys):
    """Only once it is decided: before, every value may still have to be evaluated, which needs its checkpoint."""
    screened = choose_arms(load_plan(HEADROOM), ["DAPO"])
    runs = plan_runs(screened, tmp_path / "runs")
    first = [run for run in runs if run.seed == 0]
    for shift, run in enumerate(first[:-1]):
        write_run(run, 20 * shift)
    assert collect(screened, runs, tmp_path / "results") == []
    write_run(first[-1], 100)
    words = [str(HEADROOM), "--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    assert main_of_archive([*words, "collect", "--prune"]) == 0
    assert (
        f"2 files written; 2 of {len(plan_runs(load_plan(HEADROOM), tmp_path))} runs"
        in capsys.readouterr().out
    )
    left = [task.run for task in due_tasks(screened, runs) if task.next_command()]
    assert [run.arm for run in left] == [first[-1].arm] * 5
    assert (first[-1].folder / "checkpoints").exists()

    for run in first[:-1]:
        shutil.rmtree(run.folder)
    assert main_of_archive([*words, "restore"]) == 0
    assert "2 runs restored" in capsys.readouterr().out
    assert [task.run for task in due_tasks(screened, runs) if task.next_command()] == left


def test_thin_rows_stand_for_all_steps():
    rows = [{"step": i + 1, "rollout/tokens": i, "reward/accuracy": i % 2} for i in range(40)]
    found = thinned(rows)
    assert sum(row["rollout/tokens"] for row in found) == sum(range(40))
    assert found[-1]["step"] == 40
    assert thinned([]) == []


def test_the_plan_is_whole_and_missing_sets_are_named(tmp_path, monkeypatch, capsys):
    assert len(load_plan(PLAN).arms) == 1 + 3 * 10 + 4 * 3, (
        "the start, three arms everywhere, four at three rates"
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "sets-tiny-hard.json").write_text('{"tiny-hard-20": {"digest": "0"}}')
    assert main(["--results", "results", "check"]) == 2
    assert "tiny-hard-20.jsonl is missing: make it by" in capsys.readouterr().err
    (tmp_path / "one.yaml").write_text("recipe: tiny\narms: {DAPO: {method: dapo}}\n")
    assert main(["--results", "results", "--plan", "one.yaml", "collect"]) == 0
    assert "0 files written; 0 of 1 runs are there" in capsys.readouterr().out


def test_committed_results_are_those_of_the_plan(tmp_path):
    """Also after settings were added to the project, which change the digests in the names of run folders."""
    runs = plan_runs(load_plan(PLAN), tmp_path / "runs")
    files = {file_of(run, RESULTS) for run in runs}
    assert len(files) == len(runs)
    there = {path for path in RESULTS.glob("*.json") if not path.stem.startswith("sets-")}
    assert there <= files
    assert restore(runs, RESULTS) == len(there) > 0
