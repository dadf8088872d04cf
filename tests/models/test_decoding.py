"""Token by token, with some responses leaving early: the numbers of a plain forward."""

import pytest
import torch
from transformers.cache_utils import DynamicCache

from pivot.models.decoding import ROOM, PrefilledPrompts, RepeatedContinuation, SharedContinuation, _Places
from pivot.models.rows import PromptWithResponses
from pivot.tiny import procedural

NUM_PROMPTS, NUM_SAMPLES = 3, 4


@pytest.fixture
def encoded(policy):
    prompts = [procedural.make(task, "train", 0) for task in ("angle", "count", "bars")]
    return [policy.encoder.encode(prompt) for prompt in prompts]


def prefilled(policy, encoded):
    """Prompts one by one, padded to one length by hand."""
    longest = max(len(prompt) for prompt in encoded)
    seen_PL = torch.zeros(len(encoded), longest, dtype=torch.bool)
    cache, layers = DynamicCache(), []
    for row, prompt in enumerate(encoded):
        alone = DynamicCache()
        inputs = policy.embed(prompt.input_ids_L[None], policy.features([prompt]))
        policy.hidden(inputs, prompt.position_ids_AL[:, None], None, alone)
        padding = (0, 0, longest - len(prompt), 0)
        layers.append(
            [[torch.nn.functional.pad(x, padding) for x in (c.keys, c.values)] for c in alone.layers]
        )
        seen_PL[row, longest - len(prompt) :] = True
    for index, rows in enumerate(zip(*layers, strict=True)):
        cache.update(torch.cat([k for k, _ in rows]), torch.cat([v for _, v in rows]), index)
    return PrefilledPrompts(cache, seen_PL, torch.tensor([prompt.next_position for prompt in encoded]))


def expected_logprobs(policy, encoded, tokens_NT):
    """log p of each response's tokens from one row per response."""
    units = [
        PromptWithResponses(prompt, list(tokens_NT[i * NUM_SAMPLES : (i + 1) * NUM_SAMPLES]))
        for i, prompt in enumerate(encoded)
    ]
    return policy.score(units, policy.features(encoded), layout="repeated").logprobs_BT


@torch.no_grad()
@pytest.mark.parametrize(
    "leave",
    [
        {},
        {2: [0, 1, 2, 3, 8, 9, 10, 11]},  # all responses of a prompt leave
        {1: [0, 5, 6, 9, 10, 11], 4: [5, 2, 0]},  # ragged, then out of order: indices of those that are left
    ],
)
@pytest.mark.parametrize("kind", ["shared", "repeated"])
def test_hidden_states_predict_as_a_plain_forward_does(policy, encoded, leave, kind):
    num_tokens = 8
    generator = torch.Generator().manual_seed(0)
    size = NUM_PROMPTS * NUM_SAMPLES
    tokens_NT = torch.randint(20, 600, (size, num_tokens), generator=generator)
    expected_NT = expected_logprobs(policy, encoded, tokens_NT)
    prompts, family, model = prefilled(policy, encoded), policy.family, policy.model
    if kind == "shared":
        going = SharedContinuation(family, model, prompts, NUM_SAMPLES, num_tokens)
    else:
        going = RepeatedContinuation(family, model, prompts, NUM_SAMPLES)
    alive = torch.arange(size)
    for t in range(num_tokens - 1):
        if t in leave:
            rows = torch.tensor(leave[t])
            going.keep(rows)
            alive = alive[rows]
        hidden_ND = going.advance(tokens_NT[alive, t])
        logprobs_NV = (hidden_ND @ policy.head_weight_VD.T).log_softmax(-1)
        found_N = logprobs_NV.gather(-1, tokens_NT[alive, t + 1, None]).squeeze(-1)
        torch.testing.assert_close(found_N, expected_NT[alive, t + 1], atol=3e-5, rtol=0)


@torch.no_grad()
def test_buffers_grow_when_responses_outgrow_their_room(policy, encoded):
    num_tokens = ROOM + 5
    size = NUM_PROMPTS * NUM_SAMPLES
    tokens_NT = torch.randint(20, 600, (size, num_tokens), generator=torch.Generator().manual_seed(1))
    expected_NT = expected_logprobs(policy, encoded, tokens_NT)
    going = policy.continuation(prefilled(policy, encoded), NUM_SAMPLES, num_tokens)
    for t in range(num_tokens - 1):
        hidden_ND = going.advance(tokens_NT[:, t])
    found_N = (hidden_ND @ policy.head_weight_VD.T).log_softmax(-1).gather(-1, tokens_NT[:, -1:]).squeeze(-1)
    torch.testing.assert_close(found_N, expected_NT[:, -1], atol=3e-5, rtol=0)


def test_the_prompts_keys_are_not_repeated(policy, encoded):
    prompts = prefilled(policy, encoded)
    held = prompts.cache.layers[0].keys
    going = policy.continuation(prompts, 32, 4)
    assert going.cohorts[0].layers[0].prompt_keys.data_ptr() == held.data_ptr()
    assert len(going.cohorts[0].layers[0].prompt_keys) == NUM_PROMPTS


def test_slots_map_every_response_to_its_prompt_and_back():
    prompt_N, num_keys = torch.tensor([1, 0, 1, 2, 1]), 2
    places = _Places.of(prompt_N, 3, num_keys)
    assert places.width == 3
    slot_NK = places.slot_M.view(5, num_keys)
    assert len(set(places.slot_M.tolist())) == 10, "one slot each"
    assert (slot_NK // (num_keys * places.width)).tolist() == [[p, p] for p in prompt_N]
    assert (slot_NK // places.width % num_keys).tolist() == [[0, 1]] * 5
    x_MRd = torch.arange(5 * 2 * 3 * 4.0).view(10, 3, 4)
    table = places.by_prompt(x_MRd)
    assert table.shape == (3 * num_keys, 3 * 3, 4)
    assert torch.equal(table[1 * num_keys + 1, :3], x_MRd[0 * num_keys + 1]), "prompt 1's first, second head"
    assert torch.equal(places.by_response(table), x_MRd)
    full = _Places.of(torch.tensor([0, 0, 1, 1]), 2, num_keys, width=2)
    assert torch.equal(full.by_response(full.by_prompt(x_MRd[:8])), x_MRd[:8])
