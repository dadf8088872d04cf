"""The committed start `small`: an ordinary model of the size and with the figures that its page names."""

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from experiments.headroom import pretrain
from experiments.headroom.panels import prompt
from pivot.models.loading import load_policy

FOLDER = Path(pretrain.__file__).parent
SMALL = FOLDER / "small"


def test_it_is_the_model_that_the_page_describes():
    with safe_open(SMALL / "model.safetensors", "pt") as weights:
        numbers = sum(weights.get_tensor(name).numel() for name in weights.keys())  # noqa: SIM118 - no mapping
    assert 6e6 <= numbers <= 12e6
    policy = load_policy(str(SMALL))
    encoded = policy.encoder.encode(prompt("test", 0))
    assert int((encoded.input_ids_L == policy.family.image_token_id).sum()) == 36


def test_its_figures_leave_room_and_the_page_has_them():
    found = json.loads((FOLDER / "figures.json").read_bytes())["conditions"]
    page = (FOLDER / "README.md").read_text()
    for name, row in found.items():
        assert f"{100 * row['accuracy']:.1f}" in page, name
    assert found["blank"]["accuracy"] < 0.5 * found["test"]["accuracy"], "it looks"
    assert found["train"]["mixed"] > 0.3, "groups to learn from"


def test_it_answers_as_it_was_measured():
    """Fewer prompts than were measured; prompts differ in difficulty, so the error goes by prompts."""
    recorded = json.loads((FOLDER / "figures.json").read_bytes())["conditions"]["test"]["accuracy"]
    found = pretrain.measure(SMALL, 100, 2, conditions=[("test", False)])["conditions"]["test"]["accuracy"]
    error = (recorded * (1 - recorded) / 100) ** 0.5
    assert 2.5 * error < recorded, "a model that solves nothing would not pass"
    assert found == pytest.approx(recorded, abs=2.5 * error)
