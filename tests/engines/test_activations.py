"""Kept activations save the second forward pass of their layers and change no number."""

from dataclasses import replace

import pytest
import torch

from pivot import recipes
from pivot.config import apply_settings, validate
from pivot.engines.local import LocalEngine
from pivot.errors import UserError
from pivot.method import preset
from pivot.models.rows import PromptWithResponses
from pivot.tiny import procedural

TOKENS = 40


def config_with(*settings):
    base = replace(recipes.get("tiny"), method=preset("dapo"))
    return apply_settings(base, ["model.gradient_checkpointing=true", *settings])


def opened(gib):
    return LocalEngine.open(config_with(f"train.kept_activations={gib}"))


def backward(engine):
    """Gradients of the log-probs of random responses, and how often each kind of layer ran."""
    policy = engine.policy
    encoded = [engine.prepare(prompt) for prompt in procedural.dataset("train", 2)]
    draw = torch.Generator().manual_seed(0)
    units = [
        PromptWithResponses(p, [torch.randint(20, 400, (TOKENS,), generator=draw) for _ in range(3)])
        for p in encoded
    ]
    text, vision = policy.family.text_model(policy.model).layers, policy.model.model.visual.blocks
    runs = dict.fromkeys(("text", "vision"), 0)
    hooks = [
        layer.mlp.register_forward_pre_hook(lambda *_, name=name: runs.update({name: runs[name] + 1}))
        for name, layers in (("text", text), ("vision", vision))
        for layer in layers
    ]
    engine.optimizer.zero_grad()
    for micro in engine.packing.plan(units):
        with policy.training():
            if engine.activations is not None:
                engine.activations.spend(engine.packing.cost(units, micro.parts), policy.num_patches(encoded))
            found = policy.score(units, policy.features(encoded), layout=micro.layout)
            found.logprobs_BT.sum().backward()
    for hook in hooks:
        hook.remove()
    gradients = {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None}
    return gradients, {"text": runs["text"] - len(text), "vision": runs["vision"] - len(vision)}, units


def test_kept_layers_are_not_computed_again_and_gradients_are_equal_bit_for_bit():
    engine = opened(0)
    assert engine.activations is None
    expected, again, units = backward(engine)
    layers = len(engine.policy.family.text_model(engine.policy.model).layers)
    blocks = len(engine.policy.model.model.visual.blocks)
    assert again == {"text": layers, "vision": blocks}
    tokens = sum(unit.tree_length for unit in units)
    of_layer = tokens * engine.policy.family.text_stack(engine.policy.model.config).activation_bytes(4)
    for gib, left in [
        (1.5 * of_layer / 2**30, {"text": layers - 1, "vision": None}),
        (1, {"text": 0, "vision": 0}),
    ]:
        gradients, again, _ = backward(opened(gib))
        assert again["text"] == left["text"]
        assert left["vision"] is None or again["vision"] == left["vision"]
        assert gradients.keys() == expected.keys()
        assert all(torch.equal(gradients[name], expected[name]) for name in expected)


def test_out_of_memory_gives_up_the_kept_activations_before_it_halves_the_micro_batch():
    engine = opened(1)
    _, _, units = backward(engine)
    budget = engine.packing.micro_batch_tokens
    assert engine._need_less(units)
    assert (engine.activations.num_bytes, engine.packing.micro_batch_tokens) == (0, budget)
    assert engine._need_less(units)
    assert engine.packing.micro_batch_tokens < budget
    engine.packing.may_halve, engine.activations.num_bytes = False, 1
    assert not engine._need_less(units), "train.halve_on_oom=false"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            ["model.gradient_checkpointing=false", "train.kept_activations=2"],
            "has no effect without model.gradient_",
        ),
        (["train.kept_activations=-1"], "is -1.0, but must be at least 0"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(settings, words):
    with pytest.raises(UserError, match=rf"train\.kept_activations {words}"):
        validate(config_with(*settings))
