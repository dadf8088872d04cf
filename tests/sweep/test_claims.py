"""Claims of a plan from known runs: measures, pairs of seeds, verdicts, varied and screened settings."""

import csv
import json
from pathlib import Path

import pytest

from pivot.cli import main
from pivot.sweep.claims import judge_claims
from pivot.sweep.plan import MEASURES, load_plan
from pivot.sweep.runs import plan_runs
from pivot.sweep.schedule import best_variant, due_tasks
from pivot.sweep.scores import Curve, area, measure_pair, read_curve

PLAN = """\
title: A toy
seeds: 3
arms:
  Base: {base: true}
  DAPO: {method: dapo}
  PIVOT: {method: pivot}
"""
CURVES = "claims: [{better: PIVOT, than: DAPO, measure: final}]\n"


@pytest.fixture
def planned(tmp_path):
    """The plan of a text, and its runs by label."""

    def make(text):
        path = tmp_path / "toy.yaml"
        path.write_text(text)
        plan = load_plan(path)
        runs = plan_runs(plan, tmp_path / "out")
        return plan, runs, {run.label: run for run in runs}

    return make


def write_run(run, accuracy, *, groups=8, steps=(10, 20)):
    """A trained run as `pivot train` leaves it: its status, and the validation accuracy at some steps."""
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / "run.json").write_text(json.dumps({"status": "finished"}))
    rows = [{"step": step, "rollout/groups": groups} for step in range(1, steps[-1] + 1)]
    for step, value in zip(steps, accuracy, strict=True):
        rows[step - 1]["eval/accuracy"] = value
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def verdicts(plan, runs):
    return {(one.better, one.than): one.verdict for one in judge_claims(plan, runs)}


def test_a_claim_is_judged_when_all_seeds_of_both_arms_are_there(planned):
    plan, runs, by_label = planned(PLAN + CURVES)
    for seed in range(3):
        write_run(by_label[f"DAPO, seed {seed}"], [0.3, 0.40 + seed / 100])
    for seed in range(2):
        write_run(by_label[f"PIVOT, seed {seed}"], [0.3, 0.50 + seed / 100])
    assert verdicts(plan, runs) == {("PIVOT", "DAPO"): "not run yet (2 of 3 seeds)"}
    write_run(by_label["PIVOT, seed 2"], [0.3, 0.525])
    (judged,) = judge_claims(plan, runs)
    assert judged.verdict == "holds"
    assert judged.difference.mean == pytest.approx((0.10 + 0.10 + 0.105) / 3)


def test_pairs_have_the_same_seed(planned):
    """Seeds differ by far more than arms: without pairs no difference would be seen."""
    plan, runs, by_label = planned(PLAN + CURVES)
    for seed, height in enumerate((0.2, 0.5, 0.8)):
        write_run(by_label[f"DAPO, seed {seed}"], [0.1, height])
        write_run(by_label[f"PIVOT, seed {seed}"], [0.1, height - 0.02 - seed / 1000])
    assert verdicts(plan, runs) == {("PIVOT", "DAPO"): "reversed"}


def test_one_seed_decides_nothing_and_a_margin_says_what_is_too_wide(planned):
    plan, runs, by_label = planned(PLAN.replace("seeds: 3", "seeds: 1") + CURVES)
    write_run(by_label["DAPO, seed 0"], [0.3, 0.4])
    write_run(by_label["PIVOT, seed 0"], [0.3, 0.9])
    assert verdicts(plan, runs) == {("PIVOT", "DAPO"): "cannot be told with 1 seed"}
    text = PLAN + "claims: [{better: PIVOT, than: DAPO, measure: final, margin: 1}]\n"
    plan, runs, by_label = planned(text)
    for seed, gap in enumerate((-0.05, 0.0, 0.05)):
        write_run(by_label[f"DAPO, seed {seed}"], [0.3, 0.4])
        write_run(by_label[f"PIVOT, seed {seed}"], [0.3, 0.4 + gap])
    assert verdicts(plan, runs) == {("PIVOT", "DAPO"): "cannot be told with 3 seeds"}
    assert {one.difference.verdict() for one in judge_claims(plan, runs)} == {"no difference seen"}


def test_measures_of_the_validation_curve(planned):
    """DAPO samples 8 groups per step, PIVOT 4: at PIVOT's end DAPO has made half of its steps."""
    _, _, by_label = planned(PLAN)
    dapo, pivot = by_label["DAPO, seed 0"], by_label["PIVOT, seed 0"]
    write_run(dapo, [0.2, 0.6, 0.4], groups=8, steps=(10, 20, 40))
    write_run(pivot, [0.1, 0.3, 0.5], groups=4, steps=(10, 20, 40))
    responses = dapo.config.rollout.responses
    assert read_curve(dapo) == Curve([10, 20, 40], [n * 8 * responses for n in (10, 20, 40)], [0.2, 0.6, 0.4])
    assert measure_pair("final", dapo, pivot) == (0.4, 0.5)
    assert measure_pair("best", dapo, pivot) == (0.6, 0.5)
    over_steps = (10 * 0.4 + 20 * 0.5) / 30, (10 * 0.2 + 20 * 0.4) / 30
    assert measure_pair("area", dapo, pivot) == pytest.approx(over_steps)
    # In units of 40 responses: PIVOT has points at 1, 2 and 4, DAPO at 2, 4 and 8; both are known from 2 to 4.
    assert measure_pair("equal_rollouts", dapo, pivot) == pytest.approx((0.6, 0.5))
    assert measure_pair("area_rollouts", dapo, pivot) == pytest.approx((0.4, 0.4))
    assert measure_pair("equal_rollouts", pivot, dapo) == pytest.approx((0.5, 0.6))


def test_the_model_before_training_has_no_curve(planned):
    _, _, by_label = planned(PLAN)
    write_run(by_label["DAPO, seed 0"], [0.3, 0.4])
    assert measure_pair("final", by_label["DAPO, seed 0"], by_label["Base"]) is None


def test_area_of_one_point_is_its_height():
    assert area([10, 20, 40], [0.0, 0.4, 0.8]) == pytest.approx((10 * 0.2 + 20 * 0.6) / 30)
    assert area([10], [0.3]) == 0.3


VARIED = PLAN + "vary: {train.lr: [1e-5, 2e-5]}\n" + CURVES


def test_varied_settings_make_arms_and_claims_compare_equal_values(planned):
    plan, runs, by_label = planned(VARIED)
    assert list(plan.arms) == ["Base", "DAPO, lr=1e-5", "DAPO, lr=2e-5", "PIVOT, lr=1e-5", "PIVOT, lr=2e-5"]
    assert len(runs) == 1 + 4 * 3
    assert by_label["PIVOT, lr=2e-5, seed 1"].config.train.lr == 2e-5
    assert [(one.better, one.than) for one in judge_claims(plan, runs)] == [
        ("PIVOT, lr=1e-5", "DAPO, lr=1e-5"),
        ("PIVOT, lr=2e-5", "DAPO, lr=2e-5"),
    ]
    combined, *_ = planned(PLAN + "vary: {train.lr: [1e-5, 2e-5], method.entropy_coef: [0.1, 0.2, 0.3]}\n")
    assert len(combined.arms) == 1 + 2 * 6
    assert "PIVOT, lr=2e-5, entropy_coef=0.1" in combined.arms


def test_screening_trains_the_first_seed_everywhere_and_the_rest_at_the_best_value(planned):
    plan, runs, by_label = planned(VARIED + "screen: 1\n")

    def due():
        return {task.label: task.evaluate for task in due_tasks(plan, runs)}

    first = {f"{arm}, lr={lr}, seed 0": False for arm in ("DAPO", "PIVOT") for lr in ("1e-5", "2e-5")}
    assert due() == {"Base": True, **first}
    for label, height in (("PIVOT, lr=1e-5", 0.3), ("PIVOT, lr=2e-5", 0.4), ("DAPO, lr=1e-5", 0.5)):
        write_run(by_label[f"{label}, seed 0"], [0.1, height])
    assert best_variant(plan, runs, "PIVOT") == "PIVOT, lr=2e-5"
    assert best_variant(plan, runs, "DAPO") is None
    chosen = {f"PIVOT, lr=2e-5, seed {seed}": True for seed in range(3)}
    assert due() == {"Base": True, **first} | chosen
    write_run(by_label["DAPO, lr=2e-5, seed 0"], [0.1, 0.2])
    (judged,) = judge_claims(plan, runs)
    assert (judged.better, judged.than) == ("PIVOT, lr=2e-5", "DAPO, lr=1e-5")
    assert judged.verdict == "not run yet (1 of 3 seeds)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("claims: [{better: PIVVOT, than: DAPO}]", "a claim names arm 'PIVVOT'; the nearest is PIVOT"),
        ("claims: [{better: PIVOT}]", "a claim is a mapping such as"),
        ("claims: [{better: PIVOT, than: DAPO, measure: fianl}]", "measure 'fianl'; the nearest is final"),
        ("claims: [{better: PIVOT, than: DAPO, measure: accuracy}]", "the plan has no benchmarks; use `final`"),
        ("claims: [{better: PIVOT, than: DAPO, mergin: 1}]", "claims.mergin; the nearest is"),
        ("vary: {train.lr: []}", "must give values, such as"),
        ("vary: {train.learning_rate: [1]}", "nearest is train.lr"),
        ("screen: 4", "screen is 4, but must be from 0 to 3"),
        ("vary: {train.lr: [1, 2]}\nscreen: 1\nsettings: [eval.every=0]", "screen needs the validation curve"),
        ("settings: [eval.every=0]\nclaims: [{better: PIVOT, than: DAPO, measure: best}]", "'best' needs the"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(tmp_path, capsys, text, said):
    (tmp_path / "toy.yaml").write_text(f"{PLAN}{text}\n")
    assert main(["sweep", str(tmp_path / "toy.yaml"), "--dry-run"]) == 2
    message = capsys.readouterr().err
    assert said in message
    assert message.count("\n") == 1


def test_claims_screening_and_validation_are_in_the_tables_and_on_the_page(planned, tmp_path, capsys):
    _, runs, _ = planned(VARIED + "screen: 2\nbaseline: DAPO\n")
    for run in runs:
        if run.seed is not None:
            best = "2e-5" if run.arm.startswith("PIVOT") else "1e-5"
            height = 0.5 if best in run.arm else 0.3
            write_run(run, [0.1, height + (0.1 if run.arm.startswith("PIVOT") else 0.0) + run.seed / 1000])
    assert main(["sweep", str(tmp_path / "toy.yaml"), "--table", "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    folder = tmp_path / "out" / "results" / "toy"
    assert f"results: {folder / 'index.html'}" in shown
    (claim,) = csv.DictReader((folder / "claims.csv").open())
    assert (claim["Claim"], claim["Verdict"]) == ("PIVOT, lr=2e-5 beats DAPO, lr=1e-5", "holds")
    assert float(claim["Difference"]) == pytest.approx(10.0)
    assert float(claim["Low"]) <= 10.0 + 1e-9 <= float(claim["High"]) + 2e-9
    screened = {row["Arm"]: row for row in csv.DictReader((folder / "screening.csv").open())}
    assert [name for name, row in screened.items() if row[""] == "chosen"] == [
        "DAPO, lr=1e-5",
        "PIVOT, lr=2e-5",
    ]
    rows = {row["Method"]: row for row in csv.DictReader((folder / "toy.csv").open())}
    assert list(rows) == ["Base", "DAPO, lr=1e-5", "PIVOT, lr=2e-5"]
    assert float(rows["PIVOT, lr=2e-5"]["Validation"]) == pytest.approx(60.1)
    assert float(rows["PIVOT, lr=2e-5"]["Δ, %"]) == pytest.approx(100 * (60.1 / 50.1 - 1), rel=1e-5)
    page = (folder / "index.html").read_text()
    for part in ("PIVOT, lr=2e-5 beats DAPO, lr=1e-5", "holds", "chosen", "Screening"):
        assert part in page


def test_the_example_of_the_documentation_is_the_file_that_it_names():
    root = Path(__file__).resolve().parents[2]
    plan = (root / "experiments" / "example.yaml").read_text(encoding="utf-8")
    assert plan.partition("\n")[2] in (root / "docs" / "sweep.md").read_text(encoding="utf-8")


def test_every_measure_is_documented():
    page = (Path(__file__).resolve().parents[2] / "docs" / "sweep.md").read_text(encoding="utf-8")
    for name, about in MEASURES.items():
        assert f"| `{name}` | {about} |" in page
