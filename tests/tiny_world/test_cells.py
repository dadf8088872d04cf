"""Real cells, cut down: they train, measure, resume, and are run by the command as a person would type it."""

import json
import signal
import subprocess
import sys
import time

import pytest

from experiments.tiny_world.__main__ import main
from experiments.tiny_world.cells import cell_name, result_path
from experiments.tiny_world.plan import QUICK_PLAN, Cell, load_plan
from experiments.tiny_world.run_cell import run_cell
from experiments.tiny_world.starts import Start, start_path
from pivot.jsonl import read_rows
from pivot.runs.folder import RunFolder

PLAN = load_plan(QUICK_PLAN)
STEPS = 24
PATIENCE = 300.0
"""Seconds; the machine may be busy."""
TINIEST = f"""
recipe: tiny-evidence
settings: [model.device=cpu, train.threads=1, train.steps={STEPS}, train.prompts_per_step=2,
  train.minibatch_prompts=2, rollout.responses=2, rollout.max_tokens=12, rollout.max_tries=1, data.size=4,
  eval.every=12, data.validation_size=2, eval.samples=1, eval.final_prompts=0, checkpoint.every=8,
  checkpoint.keep_last=1, log.rollouts_per_step=0]
measure: {{prompts: 5, samples: 1, looked_at: 2}}
worlds: {{main: {{}}, broken: {{settings: [model.path=no/such/model]}}}}
groups:
  main: {{arms: [dapo], seeds: 1}}
  broken: {{worlds: [broken], arms: [base]}}
"""


@pytest.fixture(scope="module")
def pivot_cell(tmp_path_factory):
    """A trained cell of the quick plan, in a world with a start of its own, and where everything is."""
    folder = tmp_path_factory.mktemp("cells")
    cell = Cell("bare", "pivot", 0)
    assert run_cell(PLAN, cell, folder / "work", folder / "results", quiet=True)
    return cell, folder


def test_a_trained_cell_writes_all_that_the_tables_need(pivot_cell):
    cell, folder = pivot_cell
    raw = json.loads(result_path(PLAN, cell, folder / "results").read_bytes())
    assert raw["cell"] == {"world": "bare", "arm": "pivot", "seed": 0, "settings": []}
    assert raw["plan"] == PLAN.digest
    assert set(raw["sets"]) == {"test", "ood", "validation", "blank"}
    for found in raw["sets"].values():
        assert len(found["correct"]) == 10
        assert all(0 <= n <= found["samples"] == 2 for n in found["correct"])
    assert raw["curve"]["steps"] == [2, 4]
    assert raw["curve"]["seconds"][0] < raw["curve"]["seconds"][1]
    assert len(raw["looks"]["dependency"]) == len(raw["looks"]["attention"]) == 5
    assert all(value > 0 for value in raw["looks"]["dependency"])
    assert sum(sum(counts) for counts in raw["looks"]["origins"].values()) == 5 * 4
    assert raw["looks"]["kinds"]["wrong"]["words"][0] > 0
    assert "visual/support_correct" in raw["dynamics"]


def test_a_finished_cell_leaves_a_run_without_checkpoints(pivot_cell):
    cell, folder = pivot_cell
    run = folder / "work" / cell_name(PLAN, cell) / "run"
    assert not (run / "checkpoints").exists()
    entries = json.loads((run / "eval" / "scores.json").read_bytes())["evaluations"]
    assert {(e["name"], e["blank"]) for e in entries} == {
        ("tiny-test", False), ("tiny-ood", False), ("tiny-validation", False), ("tiny-test", True),
    }  # fmt: skip
    for entry in entries:
        how = entry["settings"]
        assert (how["samples"], how["blank"]) == (entry["samples"], entry["blank"])
        assert (how["min_pixels"], how["max_pixels"], how["grader"]) == (3136, 12544, "pivot")


def test_a_model_is_measured_alike_every_time_and_a_lenient_reward_never_grades_the_final_sets(tmp_path):
    """The same model in two worlds that differ in the training reward alone."""
    found = {}
    for world in ("main", "lucky"):
        cell = Cell(world, "base")
        assert run_cell(PLAN, cell, tmp_path / "work", tmp_path / "results", quiet=True)
        found[world] = json.loads(result_path(PLAN, cell, tmp_path / "results").read_bytes())
    main_world, lucky = found["main"], found["lucky"]
    assert main_world["sets"] == lucky["sets"]
    assert main_world["looks"]["dependency"] == lucky["looks"]["dependency"]
    assert main_world["looks"]["attention"] == lucky["looks"]["attention"]
    rewarded = [sum(counts[0] for counts in raw["looks"]["origins"].values()) for raw in (main_world, lucky)]
    assert rewarded[0] < rewarded[1]


def test_a_start_is_made_once(tmp_path):
    start = Start(origin="tiny-hard", habit_steps=1, words="none")
    path = start_path(start, tmp_path)
    stamp = (path / "model.safetensors").stat().st_mtime_ns
    assert start_path(start, tmp_path) == path
    assert (path / "model.safetensors").stat().st_mtime_ns == stamp
    other = Start(origin="tiny-hard", habit_steps=1, words="many")
    assert start_path(other, tmp_path) != path


def options(folder, *more: str) -> list[str]:
    return [f"--plan={folder / 'plan.yaml'}", f"--work={folder / 'work'}", *more]


def test_a_stopped_cell_continues_a_failing_one_is_named_and_finished_ones_are_not_repeated(tmp_path, capsys):
    (tmp_path / "plan.yaml").write_text(TINIEST)
    seen = stopped(tmp_path)
    results = tmp_path / "work" / "results"
    assert not list(results.glob("*.json"))
    assert main(options(tmp_path, "--jobs=2")) == 1
    said = capsys.readouterr().err
    assert "failed: broken base" in said
    assert "no/such/model" in said
    assert len(list(results.glob("main-dapo-*.json"))) == 1
    folder = next((tmp_path / "work").glob("main-dapo-*"))
    assert f"resuming after step {len(seen)} of {STEPS}" in (folder / "cell.log").read_text()
    rows = read_rows(folder / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    # With their times: saved steps were not repeated.
    assert rows[: len(seen)] == seen
    assert "1 of 2 cells are finished" in (tmp_path / "work" / "README.md").read_text()
    assert main(options(tmp_path, "--only=main")) == 0
    assert "all 1 cells are finished" in capsys.readouterr().out


def stopped(folder) -> list[dict]:
    """The rows of a cell whose scheduler got SIGTERM after some steps, as a person or a machine's shutdown sends it."""
    command = [sys.executable, "-m", "experiments.tiny_world", *options(folder, "--only=main")]
    scheduler = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        run = wait_for_steps(folder / "work", 2)
        scheduler.send_signal(signal.SIGTERM)
        assert scheduler.wait(timeout=PATIENCE) == 3
    finally:
        if scheduler.poll() is None:
            scheduler.kill()
            scheduler.wait()
    RunFolder.open(run).close()  # would raise if the cell had outlived its scheduler
    rows = read_rows(run / "metrics.jsonl")
    assert 2 <= len(rows) < STEPS
    return rows


def wait_for_steps(work, number: int):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        for metrics in work.glob("main-dapo-*/run/metrics.jsonl"):
            if metrics.read_bytes().count(b"\n") >= number:
                return metrics.parent
        time.sleep(0.05)
    raise AssertionError("no cell got anywhere")
