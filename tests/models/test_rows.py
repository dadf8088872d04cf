"""Both layouts are the plain forward: log-probs, entropies, divergences and gradients."""

import pytest
import torch

from pivot.errors import UserError
from pivot.models import shared_prefix
from pivot.models.corruption import Corruption, Corruptor
from pivot.models.rows import PromptWithResponses, tree_rows
from pivot.tiny import procedural
from pivot.types import Prompt


@pytest.fixture
def units(policy, picture):
    """Ragged: different prompts, image sizes, two images, none; responses of 1 to 17 tokens."""
    prompts = [
        procedural.make("angle", "train", 0),
        Prompt("two", "<image>Compare <image>.", "1", (picture(56, 112), picture(84, 56, "blue"))),
        Prompt("none", "How much is 2 + 2?", "4"),
    ]
    generator = torch.Generator().manual_seed(0)
    return [
        PromptWithResponses(
            policy.encoder.encode(prompt),
            [torch.randint(0, 250, (length,), generator=generator) for length in lengths],
        )
        for prompt, lengths in zip(prompts, ([5, 17, 1], [3], [9, 2]), strict=True)
    ]


def plain_logprobs(policy, unit, y):
    """Hugging Face's own forward over one row."""
    ids = torch.cat([unit.prompt.input_ids_L, y])[None]
    images = unit.prompt.images
    visual = {}
    if images:
        visual = {
            "pixel_values": torch.cat([image.pixels for image in images]),
            "image_grid_thw": torch.tensor([image.grid for image in images]),
            "mm_token_type_ids": (ids == policy.family.image_token_id).int(),
        }
    policy.model.model.rope_deltas = None
    out = policy.model(input_ids=ids, attention_mask=torch.ones_like(ids), **visual)
    return out.logits[0, len(unit.prompt) - 1 : -1].log_softmax(-1)


@pytest.mark.parametrize("layout", ["tree", "repeated"])
def test_scores_are_the_plain_forwards(policy, units, layout):
    with torch.no_grad():
        found = policy.score(units, policy.features([u.prompt for u in units]), layout=layout)
        row = 0
        for unit in units:
            for y in unit.responses:
                expected_TV = plain_logprobs(policy, unit, y)
                logprobs_T = expected_TV.gather(-1, y[:, None]).squeeze(-1)
                entropy_T = -(expected_TV.exp() * expected_TV).sum(-1)
                torch.testing.assert_close(found.logprobs_BT[row, : len(y)], logprobs_T, atol=2e-5, rtol=0)
                torch.testing.assert_close(found.entropy_BT[row, : len(y)], entropy_T, atol=2e-5, rtol=0)
                assert found.mask_BT[row].sum() == len(y)
                assert (found.logprobs_BT[row, len(y) :] == 0).all()
                row += 1


def test_layouts_give_the_same_gradient(policy, units):
    gradients = []
    for layout in ("tree", "repeated"):
        policy.model.zero_grad()
        found = policy.score(units, policy.features([u.prompt for u in units]), layout=layout)
        (found.logprobs_BT.sum() + 0.1 * found.entropy_BT.sum()).backward()
        gradients.append({name: p.grad.clone() for name, p in policy.model.named_parameters()})
    for name, gradient in gradients[0].items():
        difference = (gradient - gradients[1][name]).norm() / gradient.norm().clamp(min=1e-6)
        assert difference < 1e-4, name


@torch.no_grad()
def test_the_gpus_attention_is_the_cpus(policy, units, monkeypatch):
    """FlexAttention has no backward on a CPU, and is evaluated there without its kernels; who sees whom is the same.

    The first unit has siblings with common beginnings of different lengths: a tree with branches.
    """
    first = units[0].responses[1]
    alike = [first, torch.cat([first[:3], first[:2]]), torch.cat([first[:9], first[:4]]), first[:6]]
    branching = [PromptWithResponses(units[0].prompt, alike), *units[1:]]
    features = policy.features([unit.prompt for unit in branching])
    masked = policy.score(branching, features, layout="tree")
    monkeypatch.setattr(shared_prefix, "has_flex_kernel", lambda device: True)
    flexed = policy.score(branching, features, layout="tree")
    torch.testing.assert_close(masked.logprobs_BT, flexed.logprobs_BT, atol=2e-5, rtol=0)
    torch.testing.assert_close(masked.entropy_BT, flexed.entropy_BT, atol=2e-5, rtol=0)


@pytest.mark.parametrize("layout", ["tree", "repeated"])
def test_both_views_at_once_are_the_two_views_apart(policy, units, layout):
    corruptor = Corruptor(policy.encoder, Corruption(), seed=0)
    damaged = [corruptor.corrupt(unit.prompt, 1) for unit in units]
    with torch.no_grad():
        clean, corrupted = (policy.features([u.prompt for u in units]), policy.features(damaged, "corrupted"))
        both = policy.score(units, clean, layout=layout, corrupted_features=corrupted)
        apart = policy.score(units, corrupted, layout=layout)
        row = 0
        for unit, twin in zip(units, damaged, strict=True):
            for y in unit.responses:
                p_TV = plain_logprobs(policy, unit, y)
                q_TV = plain_logprobs(policy, PromptWithResponses(twin, [y]), y)
                divergence_T = (p_TV.exp() * (p_TV - q_TV)).sum(-1)
                torch.testing.assert_close(both.divergence_BT[row, : len(y)], divergence_T, atol=5e-5, rtol=0)
                row += 1
    torch.testing.assert_close(both.corrupted_logprobs_BT, apart.logprobs_BT, atol=1e-6, rtol=0)
    assert both.divergence_BT[both.mask_BT].max() > 1e-3
    assert both.divergence_BT[-2:].abs().max() < 1e-6, "a prompt without an image looks the same corrupted"


def test_batched_vision_attention_is_the_looped_one(policy, picture):
    """Images of several sizes in one call against one call each."""
    prompts = [
        policy.encoder.encode(Prompt(f"p{i}", "<image>Read.", "1", (picture(*size),)))
        for i, size in enumerate([(84, 84), (56, 112), (84, 84), (112, 112)])
    ]
    with torch.no_grad():
        together = policy.features(prompts)
        for prompt, features in zip(prompts, together, strict=True):
            policy.forget_features()
            alone = policy.features([prompt])[0]
            # Features reach 50, where float32 has steps of 4e-6; a library sums other batches in another order.
            close = 2e-6 * float(alone[0].tokens_ND.abs().max())
            torch.testing.assert_close(features[0].tokens_ND, alone[0].tokens_ND, atol=close, rtol=0)


def test_features_are_computed_once_for_the_same_weights(policy, monkeypatch):
    prompts = [policy.encoder.encode(procedural.make("count", "train", i)) for i in range(3)]
    calls = []
    whole = policy.model.model.get_image_features
    monkeypatch.setattr(
        policy.model.model, "get_image_features", lambda *a, **k: calls.append(len(a[1])) or whole(*a, **k)
    )
    with torch.no_grad():
        policy.features(prompts[:2])
        policy.features(prompts)
        assert calls == [2, 1]
        policy.forget_features()
        policy.features(prompts)
    assert calls == [2, 1, 3]


def test_siblings_that_begin_alike_share_tokens_and_scores(policy, units):
    """The same response twice, one that is the beginning of another, one that parts later; in no order."""
    prompt = units[0].prompt
    responses = [torch.tensor(y) for y in ([7, 8, 9, 4], [5], [7, 8], [7, 8, 9, 4], [7, 8, 3, 4], [5, 6])]
    rows = tree_rows([PromptWithResponses(prompt, responses), units[1]])
    assert len(rows.targets_N) == len("7894") + len("34") + len("56") + len(units[1].responses[0])
    for row, y in enumerate(responses):
        assert rows.targets_N[rows.token_BT[row, : len(y)]].tolist() == y.tolist()
        assert rows.mask_BT[row].sum() == len(y)
    with torch.no_grad():
        found = policy.score(
            [PromptWithResponses(prompt, responses)], policy.features([prompt]), layout="tree"
        )
        apart = policy.score(
            [PromptWithResponses(prompt, responses)], policy.features([prompt]), layout="repeated"
        )
    torch.testing.assert_close(found.logprobs_BT, apart.logprobs_BT, atol=2e-5, rtol=0)
    torch.testing.assert_close(found.entropy_BT, apart.entropy_BT, atol=2e-5, rtol=0)


def test_a_shared_token_takes_the_gradient_of_all_its_owners(policy, units):
    """Weighted differently in each response, so that a gradient that reaches one alone shows."""
    prompt, y = units[0].prompt, torch.tensor([7, 8, 9])
    unit = PromptWithResponses(prompt, [y, y, torch.tensor([7, 8, 4, 4])])
    weights_B = torch.tensor([0.3, -1.7, 2.9])[:, None]
    gradients = []
    for layout in ("tree", "repeated"):
        policy.model.zero_grad()
        found = policy.score([unit], policy.features([prompt]), layout=layout)
        (weights_B * found.logprobs_BT).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in policy.model.parameters()]))
    assert (gradients[0] - gradients[1]).norm() < 1e-4 * gradients[1].norm()


def test_tree_rows_are_refused_by_an_attention_that_would_mix_siblings(policy, units, monkeypatch):
    monkeypatch.setattr(policy.model.model.language_model.config, "_attn_implementation", "eager")
    with pytest.raises(AssertionError, match="shared_prefix"):
        policy.score(units, policy.features([u.prompt for u in units]), layout="tree")


def test_an_attention_that_drops_the_shared_prefix_is_noticed(policy, units, monkeypatch):
    """As verl's padding removal would: it replaces the forward of the attention and swallows unknown arguments."""
    attention = type(policy.family.text_model(policy.model).layers[1].self_attn)
    original = attention.forward

    def forward(self, *args, shared_prefix=None, **options):
        return original(self, *args, **options)

    features = policy.features([u.prompt for u in units])
    with torch.no_grad():
        policy.score(units, features, layout="tree")
        monkeypatch.setattr(attention, "forward", forward)
        policy.score(units, features, layout="repeated")
        with pytest.raises(UserError, match="attention layers ignored the shared prefix"):
            policy.score(units, features, layout="tree")
