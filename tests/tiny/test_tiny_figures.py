"""The shipped checkpoints have the accuracies in the docs, within sampling error."""

import json
import math
from pathlib import Path

import pytest

from pivot import tiny
from pivot.cli.pretrain import measure
from pivot.tiny import figures, procedural

RECORDED = json.loads((tiny.checkpoint_path("easy").parent / "figures.json").read_text())
DOCS = Path(__file__).parents[2] / "docs" / "tiny_world.md"

NUM_PROMPTS, NUM_SAMPLES = 150, 4


@pytest.mark.parametrize("start", tiny.STARTS)
def test_the_docs_show_the_recorded_table(start):
    assert figures.markdown(RECORDED[start]["conditions"]) in DOCS.read_text()


@pytest.mark.parametrize("start", tiny.STARTS)
def test_the_recorded_start_is_one_to_learn_from(start):
    found = RECORDED[start]["conditions"]
    assert 0.30 <= found["train"]["accuracy"] <= 0.55
    assert found["train"]["format"] > 0.97
    assert found["train"]["mixed"] > 0.5
    assert found["blank"]["accuracy"] < 0.5 * found["train"]["accuracy"]
    assert found["masked"]["accuracy"] < 0.6 * found["train"]["accuracy"]


@pytest.mark.parametrize("start", tiny.STARTS)
def test_the_checkpoint_has_its_recorded_figures(start):
    """On the test split and on blank pages; prompts differ in difficulty, so the error goes by prompts."""
    conditions = [condition for condition in figures.CONDITIONS if condition.name in ("test", "blank")]
    found = measure(tiny.checkpoint_path(start), NUM_PROMPTS, NUM_SAMPLES, conditions)["conditions"]
    for name in ("test", "blank"):
        recorded = RECORDED[start]["conditions"][name]
        share = recorded["accuracy"]
        error = math.sqrt(share * (1 - share) / NUM_PROMPTS)
        assert found[name]["accuracy"] == pytest.approx(share, abs=2.5 * error), name
        assert found[name]["format"] == pytest.approx(recorded["format"], abs=0.04), name


def test_a_perfect_reader_scores_one_and_a_guesser_the_typical_share():
    def solve(prompts, view):
        return [[procedural.solution(prompt), procedural.shortcut(prompt)] for prompt in prompts]

    found = figures.measure(solve, 300)["test"]
    assert found["format"] == 1.0
    assert 0.6 < found["accuracy"] < 0.8, "half of the responses are right, the others in about three of ten"
    assert set(found["tasks"]) == set(procedural.TASKS)


def test_the_table_has_a_row_a_task_and_a_column_a_condition():
    column = {"accuracy": 0.5, "mixed": 0.25, "format": 1.0, "tasks": dict.fromkeys(procedural.TASKS, 0.125)}
    lines = figures.markdown({"train": column, "ood": column}).splitlines()
    assert lines[0] == "|  | train | ood |"
    assert lines[2] == "| angle | 12.5 | 12.5 |"
    assert lines[-3] == "| **all** | **50.0** | **50.0** |"
