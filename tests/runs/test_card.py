"""The model card says what the run was, from its configuration and scores alone."""

import json

import pytest
import yaml
from transformers import AutoModelForImageTextToText

from pivot import recipes
from pivot.config import apply_settings
from pivot.runs.card import model_card, write_card
from pivot.runs.checkpoint import CheckpointStore, find_damage
from pivot.runs.run import train

ENTRY = {"name": "geometry3k", "when": "after", "blank": False, "prompts": 601, "samples": 8, "accuracy": 0.43066,
         "interval": [0.391, 0.4702]}  # fmt: skip


def front_matter(card):
    _, head, _ = card.split("---\n", 2)
    return yaml.safe_load(head)


def test_a_paper_recipe_names_its_base_model_data_and_scores():
    config = recipes.get("geo3k-7b")
    card = model_card(config, [ENTRY], 75)
    known = front_matter(card)
    assert known["base_model"] == config.model.path
    assert known["datasets"] == ["hiyouga/geometry3k"]
    assert known["license"] == "other"
    assert known["pipeline_tag"] == "image-text-to-text"
    assert "| geometry3k | after | shown | 601 | 8 | 43.07 | 39.10 to 47.02 |" in card
    assert "75 of 75 steps" in card
    assert "| image pixels | 200704 to 1003520 |" in card
    assert "its licence applies" in card
    whole = card.split("```json\n")[1].split("```")[0]
    assert json.loads(whole)["method"]["name"] == "pivot"


def test_a_score_that_was_measured_otherwise_has_a_note():
    entries = [ENTRY | {"when": when, "settings": {"grader": "pivot"}} for when in ("before", "after")]
    assert "note |" not in model_card(recipes.get("tiny"), entries, 3)
    entries.append(ENTRY | {"when": "step-3", "settings": {"grader": "mathruler"}})
    card = model_card(recipes.get("tiny"), entries, 3)
    assert "| 95% interval | note |" in card
    assert "| geometry3k | after | shown | 601 | 8 | 43.07 | 39.10 to 47.02 |  |" in card
    assert "| 39.10 to 47.02 | grader mathruler (others pivot) |" in card


def test_local_paths_are_no_hub_ids(tmp_path):
    config = apply_settings(
        recipes.get("tiny"), [f"model.path={tmp_path}", f"data.train={tmp_path / 'rows.jsonl'}"]
    )
    known = front_matter(model_card(config, [], 3))
    assert "base_model" not in known
    assert "datasets" not in known
    assert front_matter(model_card(recipes.get("tiny"), [], 3))["license"] == "apache-2.0"


@pytest.mark.parametrize("settings", [(), ("model.lora_rank=4",)])
def test_the_card_joins_the_checkpoint_without_harming_it(tmp_path, small_config, settings):
    config = small_config("dapo", "train.steps=1", *settings)
    assert write_card(tmp_path / "run", config) is None
    train(config, tmp_path / "run", quiet=True)
    path = write_card(tmp_path / "run", config)
    newest = CheckpointStore(tmp_path / "run").latest_good()
    assert path == newest.path / "model" / "README.md"
    assert find_damage(newest.path) is None
    assert ("low-rank adapters (rank 4), merged in" in path.read_text()) == bool(settings)
    AutoModelForImageTextToText.from_pretrained(newest.path / "model")
