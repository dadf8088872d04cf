"""What a run evaluates itself on, and what it writes down about how."""

import json
from dataclasses import replace

import pytest
from PIL import Image

from pivot import recipes
from pivot.config import apply_settings
from pivot.engines.local import LocalEngine
from pivot.evaluation.runner import identity
from pivot.evaluation.sampling import evaluation_request
from pivot.evaluation.settings import EvaluationSettings
from pivot.evaluation.target import find_target
from pivot.rewards.judge import VerifierJudge
from pivot.runs.evaluation import Evaluation, before_after_table, settings_of
from pivot.runs.progress import Progress
from pivot.sampling import Sampling
from pivot.tiny import procedural

NUM_TEST = 601


@pytest.fixture
def geometry(tmp_path):
    """A local set of the size of Geometry3K's test split."""
    folder = tmp_path / "geometry"
    folder.mkdir()
    Image.new("RGB", (84, 84), "white").save(folder / "figure.png")
    for split, num_rows in (("train", 3), ("test", NUM_TEST)):
        rows = [
            {
                "id": f"{split}-{i}",
                "problem": f"<image>What is {i}?",
                "answer": str(i),
                "images": ["figure.png"],
            }
            for i in range(num_rows)
        ]
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def evaluation(config, engine=None):
    return Evaluation(config, engine, VerifierJudge("pivot", 1), Progress(1, quiet=True))


@pytest.mark.parametrize("name", ["geo3k-3b", "geo3k-7b", "virl39k-3b"])
def test_the_papers_recipes_measure_all_test_problems(name, geometry):
    config = recipes.get(name)
    own = "train" if config.data.validation is None else "validation"
    run = evaluation(replace(config, data=replace(config.data, **{own: str(geometry)})))
    assert len(run.validation_prompts()) == NUM_TEST
    assert [len(prompts) for prompts in run.final_sets().values()] == [NUM_TEST]


def test_final_prompts_is_a_number_all_or_none(geometry):
    config = apply_settings(recipes.get("geo3k-3b"), [f"data.train={geometry}"])
    for asked, expected in (("7", [7]), ("null", [NUM_TEST]), ("0", [])):
        run = evaluation(apply_settings(config, [f"eval.final_prompts={asked}"]))
        assert [len(prompts) for prompts in run.final_sets().values()] == expected


def test_rows_of_a_held_out_set_that_cannot_be_used_are_named(geometry, capsys):
    rows = (geometry / "test.jsonl").read_text().splitlines()
    (geometry / "test.jsonl").write_text("\n".join([*rows[:9], json.dumps({"id": "bad", "problem": "x"})]))
    config = apply_settings(recipes.get("geo3k-3b"), [f"data.train={geometry}"])
    run = Evaluation(config, None, VerifierJudge("pivot", 1), Progress(1))
    assert len(run.validation_prompts()) == 9
    run.final_sets()
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("1 of 10 rows left out (geometry/test/bad: answer missing)") == 1


def test_a_runs_own_scores_record_how_they_were_measured(policy, small_config):
    config = small_config(
        "dapo", "eval.final_samples=2", "reward.grader=mathruler", "rollout.max_tokens=8", "train.seed=3"
    )
    run = evaluation(config, LocalEngine(config, policy))
    sets = {"tiny-test": list(procedural.dataset("test", 2))}
    shown, blank = run.table(sets, "before")
    target = find_target("tiny")
    request = evaluation_request(2, Sampling(max_tokens=8), seed=3)
    asked = EvaluationSettings(request, "mathruler", "native", "float32", 3136, 12544)
    as_eval_would = identity(target, "tiny-test", asked)
    for name in ("version", "set", "model"):
        del as_eval_would[name]
    assert shown["settings"] == as_eval_would
    assert blank["settings"] == as_eval_would | {"blank": True}
    own = replace(config, reward=replace(config.reward, functions=("own_rewards:by_length",)))
    assert settings_of(own, policy, request).grader == "own_rewards:by_length"


def test_a_change_is_in_points(tmp_path):
    entry = {"name": "test", "blank": False, "samples": 4, "interval": [0.0, 1.0], "categories": {}}
    entries = [
        entry | {"when": when, "accuracy": value} for when, value in (("before", 0.5), ("after", 0.562))
    ]
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "scores.json").write_text(json.dumps({"evaluations": entries}))
    table = before_after_table(tmp_path)
    assert list(table.columns[-1].cells) == ["+6.2 points"]
