"""`pivot doctor` against the peak of the real code on FakeTensors: full width, few layers (`make bench` has all)."""

import dataclasses

import pytest

from benchmarks import memory
from pivot import recipes
from pivot.config import apply_settings
from pivot.doctor import find_architecture

LAYERS = 2


def few_layers(size):
    config = PUBLISHED(size)
    config.text_config.num_hidden_layers = config.vision_config.depth = LAYERS
    config.text_config.layer_types = config.text_config.layer_types[:LAYERS]
    config.vision_config.fullatt_block_indexes = [LAYERS - 1]
    return config


PUBLISHED = memory.published_config


@pytest.mark.parametrize("recipe", ["geo3k-3b", "geo3k-3b-lora"])
def test_the_estimate_is_what_an_update_allocates(monkeypatch, recipe):
    from pivot.models import architecture, qwen_vl

    monkeypatch.setattr(architecture, "_measure_published", architecture._measure_published.__wrapped__)
    monkeypatch.setattr(memory, "published_config", few_layers)
    monkeypatch.setattr(qwen_vl, "published_config", few_layers)
    config = apply_settings(recipes.get(recipe), ["train.micro_batch_tokens=16384"])
    assert find_architecture(config.model.path).text.layers == LAYERS
    measured, estimated = memory.compare("3B", config)
    assert estimated == pytest.approx(max(measured.values()), rel=0.1)
    assert dataclasses.asdict(config)["model"]["gradient_checkpointing"], "or the formula is another one"
