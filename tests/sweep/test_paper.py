"""The plans of experiments/paper: every table and figure of the paper, at its scale on paper and at toy scale here."""

import argparse
import csv
import re

import pytest
from toy_sweep import PAPER, PLANS, TOY

from pivot.cli import cluster, configuring, main, options, sweep
from pivot.evaluation.benchmarks import GROUPS, HEADINGS
from pivot.sweep.plan import load_plan
from pivot.sweep.runs import Overrides, plan_runs

METHODS = ["grpo", "dapo", "papo", "vppo", "pivot"]
ABLATION = [
    "dapo",
    "ser",
    "vaa",
    "off-pg-vaa",
    "off-sft-vaa",
    "ser-vaa-local",
    "calibrl",
    "calibrl-vaa",
    "pivot",
]
EXPECTED = {
    "table1-3b": ("Qwen/Qwen2.5-VL-3B-Instruct", ["base", *METHODS]),
    "table1-7b": ("Qwen/Qwen2.5-VL-7B-Instruct", ["base", *METHODS]),
    "table2-virl39k": ("Qwen/Qwen2.5-VL-3B-Instruct", ["base", *METHODS]),
    "table3-ablation": ("Qwen/Qwen2.5-VL-3B-Instruct", ABLATION),
    "table4-ood": ("Qwen/Qwen2.5-VL-3B-Instruct", ["base", "dapo", "pivot"]),
    "table5-grpo": ("Qwen/Qwen2.5-VL-3B-Instruct", ["base", "grpo", "pivot-grpo"]),
    "table6-interventions": ("Qwen/Qwen2.5-VL-3B-Instruct", ["dapo", "pivot", "pivot", "pivot"]),
    "table7-overhead": ("Qwen/Qwen2.5-VL-7B-Instruct", ["dapo", "vppo", "pivot"]),
    "figure2-dynamics": ("Qwen/Qwen2.5-VL-7B-Instruct", METHODS),
    "figure3-sensitivity": ("Qwen/Qwen2.5-VL-3B-Instruct", ["pivot"] * 9),
    "figure4-tokens": ("Qwen/Qwen2.5-VL-3B-Instruct", ["pivot"]),
    "figure5-attention": ("Qwen/Qwen2.5-VL-7B-Instruct", ["base", "dapo", "pivot"]),
}
"""Plan -> the model and the rows of the paper's table, or the curves of its figure."""


def runs_of(name, tmp_path, *settings):
    plan = load_plan(PAPER / f"{name}.yaml")
    return plan, plan_runs(plan, tmp_path, Overrides(settings))


def test_there_is_a_plan_for_every_table_and_figure():
    assert [path.stem for path in PLANS] == sorted(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_rows_and_models_are_those_of_the_paper(name, tmp_path):
    model, rows = EXPECTED[name]
    plan, runs = runs_of(name, tmp_path, "data.experts=experts.jsonl")
    assert ["base" if run.seed is None else run.config.method.name for run in runs] == rows
    assert len(runs) == len(plan.arms), "one run per row: the paper prints no spread"
    assert {run.config.model.path for run in runs} == {model}
    assert {run.config.data.train for run in runs} == {
        "virl39k" if name == "table2-virl39k" else "geometry3k"
    }
    group_size = 8 if "7B" in model else 5
    for run in runs:
        assert (run.config.rollout.responses, run.config.train.prompts_per_step) == (group_size, 384)
        assert (run.config.train.lr, run.config.rollout.max_tokens) == (1e-6, 2048)
        assert run.config.train.steps == (202 if name == "table2-virl39k" else 75)
        assert not run.missing


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_the_printed_command_resolves_to_the_run(path, tmp_path):
    parser = argparse.ArgumentParser()
    options.add_arguments(parser)
    cluster.add_arguments(parser)
    parser.add_argument("--out")
    plan = load_plan(path)
    for run in plan_runs(plan, tmp_path, Overrides(("data.experts=experts.jsonl",))):
        if run.seed is not None:
            args = parser.parse_args(run.train_command(plan.engine)[1:])
            assert configuring.from_arguments(args) == run.config
            assert (args.engine, args.gpus, args.out) == ("verl", 4, str(run.folder))


def test_groups_are_the_columns_of_the_papers_tables():
    headings = {name: [HEADINGS[one] for one in names] for name, names in GROUPS.items()}
    assert headings["paper"] == ["Geo3K", "MathVerse", "MathVista", "WeMath", "MMK12", "LogicVista", "Counting",
                                 "MathVerse_V"]  # fmt: skip
    assert headings["paper-9"] == ["Geo3K", "MathVista", "MathVerse", "WeMath", "MMK12", "LogicVista", "Counting",
                                   "MMMU-Pro", "MathVerse_V"]  # fmt: skip
    assert headings["ood"] == ["ScienceQA", "HallusionBench", "ChartQAPro", "InfographicVQA", "RealWorldQA"]


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_the_papers_averages_are_those_of_its_numbers(path):
    """Catches a number that was copied wrongly; the paper rounds to 0.01."""
    plan = load_plan(path)
    for name, arm in plan.arms.items():
        if plan.render[:1] == ("accuracy",) and arm.paper:
            cells = arm.paper[: len(plan.sets)]
            assert None not in cells
            assert sum(cells) / len(cells) == pytest.approx(arm.paper[len(plan.sets)], abs=0.0051), name


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_a_dry_run_prints_every_run(path, tmp_path, capsys):
    assert main(["sweep", str(path), "--dry-run", "--out", str(tmp_path / "none")]) == 0
    shown = capsys.readouterr().out
    plan, runs = runs_of(path.stem, tmp_path / "none")
    for run in runs:
        assert f"\n{run.label}  [" in shown
        if run.seed is not None:
            assert f"--method {run.config.method.name} --seed {run.seed}" in shown
        for setting in plan.arms[run.arm].settings:
            assert f"--set {setting}" in shown
    num_trained = sum(run.seed is not None for run in runs)
    assert len(re.findall(r"one node: pivot train --engine verl --gpus 4 ", shown)) == num_trained
    assert (
        len(re.findall(r"cluster:  pivot train --engine verl --gpus 8 --nodes 2 --address auto ", shown))
        == num_trained
    )
    assert len(re.findall(r"evaluate: pivot eval ", shown)) == (len(runs) if plan.sets else 0)
    assert len(re.findall(r"= [\d.]+ GPU hours", shown)) == num_trained
    assert "nothing was measured here" in shown
    assert not (tmp_path / "none").exists()


def test_the_estimate_is_the_papers_step_time(capsys):
    assert main(["sweep", str(PAPER / "table7-overhead.yaml"), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    for seconds, hours in (("698.8", "58.2"), ("830.4", "69.2"), ("860.8", "71.7")):
        assert f"75 steps x {seconds} s x 4 GPUs / 3600 = {hours} GPU hours" in shown
    assert main(["sweep", str(PAPER / "table1-3b.yaml"), "--dry-run", "--only", "PIVOT"]) == 0
    # 860.8 s x 3.7546e9 / 8.2922e9 parameters x 5 / 8 responses
    assert "75 steps x 243.6 s x 4 GPUs / 3600 = 20.3 GPU hours" in capsys.readouterr().out


def test_base_and_trained_models_are_evaluated_alike(tmp_path):
    plan, runs = runs_of("table1-3b", tmp_path)
    limits = "--max-tokens 2048 --min-pixels 200704 --max-pixels 1003520 --dtype bfloat16 --grader pivot"
    for run in runs:
        assert limits in " ".join(run.eval_command(plan.sets))


def test_plans_with_one_folder_share_runs(tmp_path):
    def folders(name, *settings):
        return {run.arm: run.folder for run in runs_of(name, tmp_path, *settings)[1]}

    main_3b, main_7b = folders("table1-3b"), folders("table1-7b")
    ablation = folders("table3-ablation", "data.experts=experts.jsonl")
    assert len({*main_3b.values(), *main_7b.values()}) == 12
    assert ablation["DAPO"] == main_3b["DAPO"], (
        "a setting that only CalibRL needs leaves the others as they are"
    )
    assert ablation["CalibRL"] != folders("table3-ablation", "data.experts=other.jsonl")["CalibRL"]
    assert folders("table4-ood")["PIVOT"] == main_3b["PIVOT"] == ablation["PIVOT"]
    assert folders("table4-ood")["Qwen2.5-VL-3B"] == main_3b["Qwen2.5-VL-3B"]
    assert folders("table6-interventions")["Random Patch Masking"] == main_3b["PIVOT"]
    assert folders("table6-interventions")["Gaussian Noise"].name.startswith("pivot-kind-gaussian-seed-0-")
    for name in ("table7-overhead", "figure2-dynamics", "figure5-attention"):
        assert folders(name).items() <= main_7b.items()
    assert folders("figure4-tokens")["PIVOT"] == main_3b["PIVOT"]


def test_calibrl_waits_for_demonstrations(tmp_path, capsys):
    _, runs = runs_of("table3-ablation", tmp_path)
    assert [run.arm for run in runs if run.missing] == ["CalibRL", "CalibRL + VAA"]
    assert main(["sweep", str(PAPER / "table3-ablation.yaml"), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "CalibRL, seed 0  [needs data.experts: left out unless you give --set data.experts=...]" in shown
    assert "training:   7 runs" in shown
    assert "without 2 runs that are left out" in shown


TOY_ARMS = {
    "figure3-sensitivity": [
        "beta = 0.025",
        "beta = 0.1, lambda_exp = 0.3",
        "beta = 0.4",
        "lambda_exp = 0.075",
        "lambda_exp = 1.2",
    ]
}
"""Arms that run at toy scale, where others differ from them in nothing but a number."""


@pytest.fixture(scope="module")
def shared_out(tmp_path_factory):
    """Runs of all plans: at toy scale both model sizes are the tiny model, so that most runs serve several plans."""
    return tmp_path_factory.mktemp("paper")


def parse(command):
    """The options of `pivot sweep ...`."""
    parser = argparse.ArgumentParser()
    sweep.add_arguments(parser)
    return parser.parse_args(command[1:])


@pytest.mark.slow
@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_a_plan_runs_at_toy_scale(path, shared_out, commands, capsys):
    plan = load_plan(path)
    benchmarks = ["--benchmarks", "tiny-test"] if plan.sets else []
    arms = TOY_ARMS.get(plan.name, list(plan.arms))
    only = [word for arm in arms for word in ("--only", arm)] if plan.name in TOY_ARMS else []
    command = ["sweep", str(path), "--out", str(shared_out), *TOY, *benchmarks, *only]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "(paper)" not in shown, "another model's numbers do not stand beside the paper's"
    results = shared_out / "results" / plan.name
    for words in (plan.title, f"for {plan.source} of the paper"):
        assert words not in shown, "nor does it carry the caption of an experiment that it is not"
    if "accuracy" in plan.render:
        rows = list(csv.DictReader((results / f"{plan.name}.csv").open()))
        assert [row["Method"] for row in rows] == arms
        for row in rows:
            assert 0 <= float(row["tiny-test"]) == float(row["Avg."]) <= 100
            assert row["Seeds"] == ("" if plan.arms[row["Method"]].base else "1")
    if "overhead" in plan.render:
        rows = list(csv.DictReader((results / f"{plan.name}.csv").open()))
        assert [row["Method"] for row in rows] == ["DAPO", "VPPO", "PIVOT"]
        dapo, pivot = float(rows[0]["s / step"]), float(rows[2]["s / step"])
        assert float(rows[2]["Δ, %"]) == pytest.approx(100 * (pivot / dapo - 1), abs=1e-2)
        assert [bool(row["Buffer RAM, MB"]) for row in rows] == [False, False, True]
    if "dynamics" in plan.render:
        assert {p.name for p in results.glob("figures/*.svg")} == {
            "compared-training-accuracy.svg", "compared-validation-accuracy.svg",
        }  # fmt: skip
    if "sensitivity" in plan.render:
        assert {p.name for p in results.glob("figures/*.svg")} == {
            "sensitivity-method-beta.svg", "sensitivity-method-anchor_coef.svg",
        }  # fmt: skip
    if plan.name == "figure4-tokens":
        assert commands[-1][0] == "report"
        assert list(shared_out.glob("pivot-seed-0-*/figures/tokens-1.svg"))
    if plan.name == "figure5-attention":
        assert list((results / "attention").glob("*.svg"))
    commands.clear()
    assert sweep.complete(*sweep.planned(parse(command)), jobs=1) == 0
    assert commands == [], "what is finished stays finished"


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_the_papers_own_numbers_agree_with_the_claims(path):
    """Every claim mirrors a statement of the paper; figures print no numbers."""
    plan = load_plan(path)
    for claim in plan.claims:
        if path.stem.startswith("figure"):
            assert claim.measure in ("area", "final")
            continue
        column = plan.sets.index(claim.measure) if claim.measure else len(plan.sets)
        better, worse = (plan.arms[name].paper[column] for name in (claim.better, claim.than))
        assert better > worse, claim
    without = {"table7-overhead", "figure3-sensitivity", "figure4-tokens", "figure5-attention"}
    assert bool(plan.claims) == (path.stem not in without)
