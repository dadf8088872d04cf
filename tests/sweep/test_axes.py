"""Values with names, stages, claims at some values, and what is compared at equal rollouts, tokens and time."""

import csv
import json
import re

import pytest

from pivot.cli import main
from pivot.sweep.claims import judge_claims
from pivot.sweep.learning import rollout_charts
from pivot.sweep.plan import load_plan
from pivot.sweep.runs import plan_runs
from pivot.sweep.schedule import due_tasks, in_order
from pivot.sweep.scores import accuracies, measure_pair, unmeasured

PLAN = """\
title: A toy
seeds: 2
benchmarks: [tiny-test, train]
limit: 20
baseline: DAPO
settings: [train.max_responses=4000, data.size=20]
vary:
  data: {easy: [data.train=sets/easy.jsonl, eval.every=5], hard: [data.train=sets/hard.jsonl, eval.every=5]}
  group:
    G=4: [rollout.responses=4, train.prompts_per_step=16]
    G=8: [rollout.responses=8, train.prompts_per_step=8, train.minibatch_prompts=8]
arms:
  Base: {base: true}
  DAPO: {method: dapo}
  SER: {method: ser}
  Uniform: {method: ser, settings: [method.replay_choice=uniform], at: {data: [hard]}}
claims:
  - {better: SER, than: DAPO, measure: equal_tokens, at: {data: [hard], group: [G=8]}}
  - {better: SER, than: Uniform, measure: equal_time}
  - {better: SER, than: DAPO, measure: train, at: {group: [G=4]}}
  - {better: SER, than: Base, at: {data: [easy]}}
stages:
  - {arms: [DAPO, SER], at: {data: [hard], group: [G=8]}}
  - {arms: [Uniform]}
render: [accuracy, rollouts]
"""


@pytest.fixture
def planned(tmp_path):
    path = tmp_path / "toy.yaml"
    path.write_text(PLAN)
    plan = load_plan(path)
    runs = plan_runs(plan, tmp_path / "out")
    return plan, runs, {run.label: run for run in runs}


def write_run(run, accuracy, *, tokens=1000, seconds=2.0, steps=(5, 10), groups=8):
    """As `pivot train` leaves a run that its budget ended."""
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / "run.json").write_text(json.dumps({"status": "finished", "saved_step": steps[-1]}))
    each = {"rollout/groups": groups, "rollout/tokens": tokens, "time/processor": seconds, "time/step": 9.0}
    rows = [{"step": step, **each} for step in range(1, steps[-1] + 1)]
    for step, value in zip(steps, accuracy, strict=True):
        rows[step - 1]["eval/accuracy"] = value
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_scores(run, **accuracy):
    common = {"when": run.when, "blank": False, "samples": 8, "limit": 20, "settings": run.eval_settings()}
    entries = [
        {"name": name.replace("_", "-"), "accuracy": value, **common} for name, value in accuracy.items()
    ]
    (run.folder / "eval").mkdir(parents=True, exist_ok=True)
    (run.folder / "eval" / "scores.json").write_text(json.dumps({"version": 1, "evaluations": entries}))


def test_values_with_names_are_several_settings_each(planned):
    plan, _, by_label = planned
    assert list(plan.arms)[:3] == ["Base", "DAPO, easy, G=4", "DAPO, easy, G=8"]
    assert [name for name in plan.arms if name.startswith("Uniform")] == [
        "Uniform, hard, G=4",
        "Uniform, hard, G=8",
    ]
    config = by_label["SER, hard, G=4, seed 1"].config
    assert (config.data.train, config.rollout.responses, config.train.prompts_per_step) == (
        "sets/hard.jsonl",
        4,
        16,
    )


def test_claims_are_about_the_values_that_they_name(planned):
    plan, runs, _ = planned
    assert [(one.better, one.than) for one in judge_claims(plan, runs)] == [
        ("SER, hard, G=8", "DAPO, hard, G=8"),
        ("SER, hard, G=4", "Uniform, hard, G=4"),
        ("SER, hard, G=8", "Uniform, hard, G=8"),
        ("SER, easy, G=4", "DAPO, easy, G=4"),
        ("SER, hard, G=4", "DAPO, hard, G=4"),
        ("SER, easy, G=4", "Base"),
        ("SER, easy, G=8", "Base"),
    ]


def test_stages_come_first_and_seed_by_seed(planned):
    plan, runs, _ = planned
    order = [task.label for task in in_order(plan, due_tasks(plan, runs))]
    assert order[:8] == [
        *[f"{arm}, hard, G=8, seed {seed}" for seed in (0, 1) for arm in ("DAPO", "SER")],
        *[f"Uniform, hard, G={size}, seed {seed}" for size in (4, 8) for seed in (0, 1)],
    ]
    assert len(order) == len(runs)
    assert order[8:12] == [
        "Base",
        "DAPO, easy, G=4, seed 0",
        "SER, easy, G=4, seed 0",
        "DAPO, easy, G=4, seed 1",
    ]


def test_equal_tokens_and_equal_time(planned):
    """SER's tokens cost half as much as DAPO's and its steps three times as long."""
    _, _, by_label = planned
    dapo, ser = (by_label[f"{arm}, hard, G=8, seed 0"] for arm in ("DAPO", "SER"))
    write_run(dapo, [0.2, 0.4], tokens=1000, seconds=1.0)
    write_run(ser, [0.3, 0.6], tokens=500, seconds=3.0)
    assert measure_pair("equal_rollouts", dapo, ser) == pytest.approx((0.4, 0.6))
    assert measure_pair("equal_tokens", dapo, ser) == pytest.approx((0.2, 0.6))
    assert measure_pair("equal_time", ser, dapo) == pytest.approx((0.3, 0.4))
    rows = [json.loads(line) for line in (ser.folder / "metrics.jsonl").read_text().splitlines()]
    with_gpu = [{**row, "memory/gpu_peak_gb": 1.0} for row in rows]
    (ser.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in with_gpu))
    assert measure_pair("equal_time", ser, dapo) == pytest.approx((0.3, 0.4)), (
        "the clock of a GPU: 9 s per step"
    )
    without = [{key: value for key, value in row.items() if "tokens" not in key} for row in rows]
    (ser.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in without))
    assert measure_pair("equal_tokens", ser, dapo) is None


def test_the_training_prompts_are_a_benchmark_of_their_own(planned):
    plan, _, by_label = planned
    run, base = by_label["SER, hard, G=8, seed 0"], by_label["Base"]
    words = run.eval_command(unmeasured(run))
    assert words[words.index("--benchmarks") + 1] == "tiny-test,sets/hard.jsonl"
    assert unmeasured(base) == ["tiny-test"]
    write_run(run, [0.2, 0.4])
    assert run.when == "step-10", "the budget ended it there"
    write_scores(run, tiny_test=0.5, hard=0.9)
    assert accuracies(run) == {"tiny-test": 0.5, "train": 0.9}
    assert unmeasured(run) == []
    assert plan.averaged == ["tiny-test"]


def test_tables_and_learning_curves_come_once_per_combination(planned, tmp_path, capsys):
    plan, runs, by_label = planned
    for label, height in (("DAPO, hard, G=8", 0.3), ("SER, hard, G=8", 0.5)):
        for seed in (0, 1):
            run = by_label[f"{label}, seed {seed}"]
            write_run(run, [0.1, height + seed / 100])
            write_scores(run, tiny_test=height, hard=0.9)
    (chart,) = rollout_charts(plan, runs)
    assert chart.title == "Validation accuracy over sampled responses: hard, G=8"
    assert [curve.label for curve in chart.curves] == ["DAPO", "SER"]
    ser = chart.curves[1]
    assert (ser.steps[0], ser.steps[-1]) == (5 * 64, 10 * 64)
    assert (ser.values[0], ser.values[-1]) == pytest.approx((0.1, 0.505))
    assert main(["sweep", str(tmp_path / "toy.yaml"), "--table", "--out", str(tmp_path / "out")]) == 0
    folder = tmp_path / "out" / "results" / "toy"
    rows = {row["Method"]: row for row in csv.DictReader((folder / "toy-hard-G-8.csv").open())}
    assert list(rows) == ["Base", "DAPO, hard, G=8", "SER, hard, G=8", "Uniform, hard, G=8"]
    assert float(rows["SER, hard, G=8"]["Avg."]) == 50.0
    assert float(rows["SER, hard, G=8"]["Training prompts"]) == 90.0
    assert {path.stem for path in (folder / "figures").iterdir()} >= {"learning-hard-G-8"}
    assert "Validation accuracy over sampled responses: hard, G=8" in (folder / "index.html").read_text()
    page = (folder / "index.html").read_text()
    assert ">hard, G=8</h2>" in page
    shown = capsys.readouterr().out
    assert "SER, easy" not in shown.partition("Claims: ")[0], "claims without runs are counted, not listed"
    assert re.search(r"over seeds; \d+ claims have no finished pair of runs yet", shown)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            "at: {data: [easy]}",
            "at: {date: [easy]}",
            "names 'date', which `vary` does not have; the nearest is data",
        ),
        ("at: {data: [easy]}", "at: {data: [eazy]}", "at.data names 'eazy'; the nearest is easy"),
        ("at: {data: [easy]}", "at: [easy]", "must name values of `vary`"),
        ("{arms: [Uniform]}", "{arms: [Uniformly]}", "a stage names arm 'Uniformly'; the nearest is Uniform"),
        ("{arms: [Uniform]}", "Uniform", "a stage is a mapping such as"),
        ("    G=4: [", "    G=4: rollout.responses=4 # [", "or names with their settings"),
        ("limit: 20", "limit: 21", "give `limit` at most data.size rows"),
        ("Base: {base: true}", "Base: {base: true, at: {data: [easy]}}", "leave method and settings out"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, capsys, before, after, said):
    path = tmp_path / "toy.yaml"
    path.write_text(PLAN.replace(before, after, 1))
    assert main(["sweep", str(path), "--dry-run"]) == 2
    message = capsys.readouterr().err
    assert said in message
    assert message.count("\n") == 1
