"""`pivot sweep` as a person types it: plans with mistakes, whole sweeps, killed and failing ones, and their tables."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from toy_sweep import TOY

from pivot.cli import main
from pivot.config import to_dict
from pivot.evaluation.benchmarks import BENCHMARKS
from pivot.sweep.plan import load_plan
from pivot.sweep.runs import plan_runs
from pivot.sweep.scores import accuracies

PLAN = """\
title: A toy
source: no table
benchmarks: [tiny-test, tiny-ood]
baseline: DAPO
arms:
  Base: {base: true, paper: [10, 20, 15, null]}
  DAPO: {method: dapo, paper: [30, 40, 35, null]}
  PIVOT: {method: pivot, paper: [50.5, 60.5, 55.5, 58.57]}
"""


@pytest.fixture
def plan_file(tmp_path):
    path = tmp_path / "toy.yaml"
    path.write_text(PLAN)
    return path


def rows_of(path):
    return {row["Method"]: row for row in csv.DictReader(path.open())}


def wait_until(condition):
    end = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def write_scores(run, accuracies, **changes):
    """An evaluation as `pivot eval` writes it for this run; `changes` differ from what the plan asks."""
    settings = run.eval_settings() | {
        key: value for key, value in changes.items() if key in run.eval_settings()
    }
    common = {"when": run.when, "blank": False, "samples": run.plan.samples, "limit": run.plan.limit}
    entries = [
        {"name": name, "accuracy": accuracy, "settings": settings} | common | changes
        for name, accuracy in accuracies.items()
    ]
    (run.folder / "eval").mkdir(parents=True, exist_ok=True)
    (run.folder / "eval" / "scores.json").write_text(json.dumps({"version": 1, "evaluations": entries}))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (PLAN.replace("baseline:", "base_line:"), "base_line; the nearest is"),
        (PLAN.replace("arms:", "arm:"), "arm; the nearest is"),
        (PLAN.replace("method: dapo", "methd: dapo"), "arms.DAPO.methd; the nearest is"),
        (PLAN.replace("method: dapo", "method: dapoo"), "no method 'dapoo'; the nearest is dapo"),
        (PLAN.replace("tiny-ood", "tiny-odd"), "Did you mean 'tiny-ood'"),
        (PLAN.replace("baseline: DAPO", "baseline: DAPPO"), "baseline is 'DAPPO'; the nearest is DAPO"),
        (PLAN.replace("30, 40, 35, null", "30, 40, 35"), "has 3 numbers, but the table has 4 columns"),
        (PLAN.replace("{method: dapo,", "{method: dapo, settings: [train.learning_rate=1],"), "nearest is train.lr"),
        (PLAN.replace("{method: dapo,", "{method: dapo, settings: [train.seed=3],"), "`seeds` its seeds"),
        (PLAN + "then: ['report {PIVOTT}']\n", "then names {PIVOTT}; the nearest is PIVOT"),
        (PLAN + "render: [accuracies]\n", "one of accuracy, overhead, dynamics, sensitivity"),
        (PLAN + "seeds: 0\n", "seeds is 0, but must be at least 1"),
        (PLAN + "recipe: tinny\n", "no recipe 'tinny'; the nearest is tiny"),
        ("arms: [dapo]\n", "must name at least one"),
        (PLAN.replace("{base: true,", "{base: true, method: dapo,"), "leave method and settings out"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_plan_is_one_sentence(tmp_path, capsys, text, said):
    path = tmp_path / "toy.yaml"
    path.write_text(text)
    assert main(["sweep", str(path), "--dry-run"]) == 2
    message = capsys.readouterr().err
    assert said in message
    assert message.startswith("pivot sweep: ")
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "PIVVOT"], "--only PIVVOT is not an arm of toy; the nearest is PIVOT"),
        (["--gpus", "8"], "--gpus belongs to --engine verl"),
        (["--engine", "verl", "--gpus", "0"], "--gpus is 0"),
        (["--engine", "embedded"], "There is no engine 'embedded'; "),
        (["--plugin", "nowhere.py"], "nowhere.py for the plugin."),
        (["--seeds", "0"], "--seeds is 0"),
        (["--benchmarks", "tiny-tset"], "Did you mean 'tiny-test'"),
        (["--set", "train.minibatch_prompts=64"], "train.minibatch_prompts is 64"),
    ],
)
def test_a_wrong_option_is_one_sentence(plan_file, capsys, words, said):
    assert main(["sweep", str(plan_file), "--dry-run", *words]) == 2
    message = capsys.readouterr().err
    assert said in message
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    "settings",
    [
        ["data.train=no-such.jsonl"],
        ["data.train=geometry3k", "data.path=no-such.jsonl"],
        ["data.validation=no-such.jsonl"],
    ],
)
def test_missing_data_is_one_sentence_before_any_run_starts(plan_file, tmp_path, capsys, settings):
    words = [word for setting in settings for word in ("--set", setting)]
    assert main(["sweep", str(plan_file), "--out", str(tmp_path / "out"), *TOY, *words]) == 2
    shown = capsys.readouterr()
    assert "no-such.jsonl does not exist" in shown.err
    assert shown.err.count("\n") == 1
    assert not shown.out
    assert not (tmp_path / "out").exists()


def test_runs_on_a_cpu_are_listed_without_clusters_and_gpu_hours(plan_file, capsys):
    assert main(["sweep", str(plan_file), "--dry-run", "--recipe", "tiny"]) == 0
    shown = capsys.readouterr().out
    assert "train:    pivot train --recipe tiny --method dapo" in shown
    assert "training:   2 runs\n" in shown
    assert "GPU" not in shown
    assert "verl" not in shown


def test_options_change_the_plan(plan_file, capsys):
    words = ["--engine", "verl", "--nodes", "3", "--gpus", "8", "--seeds", "2", "--only", "PIVOT"]
    words += ["--set", "method.beta=0.7", "--benchmarks", "paper", "--samples", "4", "--limit", "9"]
    assert main(["sweep", str(plan_file), "--dry-run", "--out", "here", *words]) == 0
    shown = capsys.readouterr().out
    assert "1 arms, 2 seeds: 2 runs" in shown
    assert "settings: method=pivot, method.beta=0.7, train.seed=1" in shown
    assert "one node: pivot train --engine verl --gpus 8 --recipe tiny" in shown
    assert "cluster:  pivot train --engine verl --gpus 8 --nodes 3 --address auto" in shown
    assert "--benchmarks paper --samples 4 --limit 9 --engine embedded" in shown
    assert "DAPO" not in shown.partition("These GPU hours")[0]


def test_the_table_is_the_mean_over_seeds_beside_the_papers_numbers(plan_file, tmp_path, capsys):
    plan_file.write_text(PLAN + "seeds: 2\n")
    plan = load_plan(plan_file)
    base, dapo, _, pivot, other_pivot = plan_runs(plan, tmp_path / "out")
    write_scores(base, {"tiny-test": 0.1, "tiny-ood": 0.3})
    write_scores(dapo, {"tiny-test": 0.2, "tiny-ood": 0.6})
    write_scores(pivot, {"tiny-test": 0.4, "tiny-ood": 0.6})
    write_scores(other_pivot, {"tiny-test": 0.5, "tiny-ood": 0.8})
    kept = ((pivot, 32, 30), (other_pivot, 32, 24))
    for run, *numbers in kept:
        steps = [
            {"step": i, "rollout/groups_kept": n, "rollout/groups_wanted": 32} for i, n in enumerate(numbers)
        ]
        (run.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in steps))
    assert main(["sweep", str(plan_file), "--table", "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    rows = rows_of(tmp_path / "out" / "results" / "toy" / "toy.csv")
    assert list(rows) == ["Base", "DAPO", "PIVOT", "Base (paper)", "DAPO (paper)", "PIVOT (paper)"]
    expected = {
        "Base": (10, 30, 20),
        "DAPO": (20, 60, 40),
        "PIVOT": (45, 70, 57.5),
        "DAPO (paper)": (30, 40, 35),
    }
    for label, numbers in expected.items():
        found = [float(rows[label][name]) for name in ("tiny-test", "tiny-ood", "Avg.")]
        assert found == pytest.approx(numbers), label
    assert float(rows["PIVOT"]["Δ, %"]) == pytest.approx(43.75)
    assert float(rows["Base"]["Δ, %"]) == pytest.approx(-50)
    assert rows["DAPO"]["Δ, %"] == ""
    assert [rows[name]["Seeds"] for name in ("Base", "DAPO", "PIVOT")] == ["", "1 of 2", "2"]
    assert rows["Base"]["Groups, %"] == "", "nothing was trained"
    assert float(rows["PIVOT"]["Groups, %"]) == pytest.approx((100 * 62 / 64 + 100 * 56 / 64) / 2)
    # Over seeds: 40 and 50; 60 and 80; averages 50 and 65.
    assert float(rows["PIVOT"]["tiny-test std"]) == pytest.approx(50**0.5)
    assert float(rows["PIVOT"]["Avg. std"]) == pytest.approx(112.5**0.5)
    assert "**45.00 ± 7.07**" in shown
    assert "50.50" in shown
    assert "\\midrule" in (tmp_path / "out" / "results" / "toy" / "toy.tex").read_text()


@pytest.mark.parametrize(
    "change",
    [
        {"limit": 4},
        {"samples": 2},
        {"when": "step-3"},
        {"blank": True},
        {"max_tokens": 7},
        {"dtype": "bfloat16"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_an_evaluation_that_was_made_otherwise_does_not_count(plan_file, tmp_path, change):
    run = plan_runs(load_plan(plan_file), tmp_path / "out")[1]
    write_scores(run, {"tiny-test": 0.2, "tiny-ood": 0.6}, **change)
    assert main(["sweep", str(plan_file), "--table", "--out", str(tmp_path / "out")]) == 0
    row = rows_of(tmp_path / "out" / "results" / "toy" / "toy.csv")["DAPO"]
    assert (row["tiny-test"], row["Avg."], row["Seeds"]) == ("", "", "0 of 1")


@pytest.fixture
def unchanged_benchmarks():
    """Forgets the benchmarks that a test has registered."""
    before = dict(BENCHMARKS)
    yield
    BENCHMARKS.clear()
    BENCHMARKS.update(before)


@pytest.mark.usefixtures("unchanged_benchmarks")
def test_files_and_code_of_ones_own_are_benchmarks(tmp_path, commands, capsys):
    (tmp_path / "mine").mkdir()
    rows = [{"problem": f"What is {n} + 1?", "answer": str(n + 1), "images": []} for n in range(4)]
    (tmp_path / "mine" / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.py").write_text(
        "from pivot.data import Draft, Layout\n"
        "from pivot.evaluation.benchmarks import Benchmark\n"
        "layout = Layout(('problem', 'answer'), lambda row: Draft(row.text('problem'), row.text('answer')))\n"
        "MINE = Benchmark(name='other-sums', heading='Sums', hub_id='me/sums', split='train', layouts=(layout,))\n"
    )
    sums = tmp_path / "mine" / "sums.jsonl"
    plan = PLAN.replace("tiny-test, tiny-ood", f"{sums}, '{tmp_path}/mine.py:MINE'").replace(
        "source: no table\n", ""
    )
    plan_file = tmp_path / "toy.yaml"
    plan_file.write_text(re.sub(r", paper: \[.*?\]", "", plan))
    words = [
        "sweep",
        str(plan_file),
        "--out",
        str(tmp_path / "out"),
        *TOY,
        "--only",
        "Base",
        "--only",
        "DAPO",
    ]
    words += ["--path", f"{tmp_path}/mine.py:MINE={sums}"]
    assert main(words) == 0, capsys.readouterr().err
    rows = rows_of(tmp_path / "out" / "results" / "toy" / "toy.csv")
    assert rows["DAPO"]["sums"] != ""
    assert rows["Base"]["other-sums"] != ""
    commands.clear()
    assert main(words) == 0
    assert commands == [], "what was measured counts"


def test_a_failing_run_is_reported_and_does_not_end_the_others(plan_file, tmp_path, commands, capsys):
    broken = tmp_path / "broken.jsonl"
    broken.write_text("no row\n")
    plan_file.write_text(PLAN.replace("{method: dapo,", f"{{method: dapo, settings: [data.train={broken}],"))
    out = tmp_path / "out"
    words = ["sweep", str(plan_file), "--out", str(out), *TOY, "--benchmarks", "tiny-test"]
    assert main(words) == 1
    captured = capsys.readouterr()
    assert "failed: DAPO, seed 0: " in captured.err
    assert "broken.jsonl" in captured.err
    assert [(words[0], "dapo" in words) for words in commands] == [
        ("eval", False), ("train", True), ("train", False), ("eval", False),
    ]  # fmt: skip
    rows = rows_of(out / "results" / "toy" / "toy.csv")
    assert rows["PIVOT"]["tiny-test"] != ""
    assert rows["DAPO"]["tiny-test"] == ""


def test_a_run_that_stopped_is_resumed_and_not_begun_again(plan_file, tmp_path, commands):
    out = tmp_path / "out"
    words = ["sweep", str(plan_file), "--out", str(out), *TOY, "--benchmarks", "tiny-test", "--only", "DAPO"]
    assert main(words) == 0
    (run,) = out.glob("dapo-*")
    first = (run / "metrics.jsonl").read_bytes()
    status = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(status | {"status": "stopped"}))
    commands.clear()
    assert main(words) == 0
    assert [command[:2] for command in commands] == [["train", "--resume"]]
    assert (run / "metrics.jsonl").read_bytes() == first


@pytest.mark.parametrize(
    ("changes", "found"), [({}, True), ({"engine": "verl"}, False), ({"lr": 1e-3}, False)]
)
def test_a_run_of_an_older_version_is_found_by_its_settings(plan_file, tmp_path, changes, found):
    """It named the engine differently and lacked a setting, so its folder has another digest."""
    out = tmp_path / "out"
    run = plan_runs(load_plan(plan_file), out)[1]
    old = out / f"{run.folder.name[:-8]}01234567"
    old.mkdir(parents=True)
    config = to_dict(run.config)
    del config["plugins"], config["train"]["overlap"]
    config["train"]["lr"] = changes.get("lr", config["train"]["lr"])
    (old / "config.json").write_text(json.dumps(config))
    (old / "run.json").write_text(json.dumps({"engine": changes.get("engine", "local")}))
    assert plan_runs(load_plan(plan_file), out)[1].folder == (old if found else run.folder)


def test_an_old_score_counts_under_the_samplers_new_name(plan_file, tmp_path):
    run = plan_runs(load_plan(plan_file), tmp_path)[1]
    for name in ("embedded", "native"):
        write_scores(run, {"tiny-test": 0.5}, engine=name)
        assert accuracies(run) == {"tiny-test": 0.5}
    write_scores(run, {"tiny-test": 0.5}, engine="vllm")
    assert accuracies(run) == {}


def test_more_benchmarks_are_evaluated_without_the_old_ones(plan_file, tmp_path, commands):
    out = tmp_path / "out"
    words = ["sweep", str(plan_file), "--out", str(out), *TOY, "--only", "Base"]
    assert main([*words, "--benchmarks", "tiny-test"]) == 0
    commands.clear()
    assert main(words) == 0
    assert [command[command.index("--benchmarks") + 1] for command in commands] == ["tiny-ood"]


@pytest.mark.slow
def test_a_sweep_in_processes_of_its_own_is_killed_twice_and_continues(plan_file, tmp_path, capsys):
    """The whole command line, stopped and then killed in the middle of training, and the table of the real scores."""
    out = tmp_path / "out"
    words = ["sweep", str(plan_file), "--out", str(out), *TOY, "--benchmarks", "tiny-test", "--only", "Base"]
    words += [
        "--only",
        "DAPO",
        "--set",
        "train.steps=12",
        "--set",
        "eval.every=12",
        "--set",
        "checkpoint.every=1",
    ]
    command = [sys.executable, "-P", "-m", "pivot", *words]

    def steps():
        return [
            json.loads(line)["step"]
            for path in out.glob("dapo-*/metrics.jsonl")
            for line in path.read_text().splitlines()
        ]

    def kill_after_a_step(number):
        before = len(steps())
        sweep = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        wait_until(lambda: len(steps()) > before or sweep.poll() is not None)
        os.kill(sweep.pid, number)
        said, _ = sweep.communicate(timeout=240)
        (run,) = out.glob("dapo-*")
        # Killed with -9 it leaves a child behind, which saves its step and ends.
        wait_until(lambda: json.loads((run / "run.json").read_text())["status"] == "stopped")
        assert before < len(steps()) < 12, "it was in the middle"
        return run, sweep.returncode, said

    _, code, said = kill_after_a_step(signal.SIGTERM)
    assert code == 3, said
    assert "stopped; the same command continues" in said
    base = out / next(out.glob("base-*")).name / "eval" / "scores.json"
    evaluated = base.stat().st_mtime_ns
    run, code, said = kill_after_a_step(signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert "DAPO, seed 0: resuming" in said

    assert main(words) == 0
    assert "DAPO, seed 0: resuming" in capsys.readouterr().out
    assert base.stat().st_mtime_ns == evaluated, "the base model is not evaluated twice"
    assert steps() == list(range(1, 13))
    rows = rows_of(out / "results" / "toy" / "toy.csv")
    for label, folder in {"Base": base.parent, "DAPO": run / "eval"}.items():
        entries = json.loads((folder / "scores.json").read_text())["evaluations"]
        (entry,) = [e for e in entries if e["name"] == "tiny-test" and e["when"] in (None, "step-12")]
        assert (entry["prompts"], entry["samples"], entry["limit"]) == (4, 2, 4)
        assert float(rows[label]["tiny-test"]) == pytest.approx(100 * entry["accuracy"])

    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "training" not in shown
    assert "evaluating" not in shown
    assert shown.count(": finished") == 2
