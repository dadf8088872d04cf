import pytest
import torch

from pivot.errors import UserError
from pivot.models import decoding
from pivot.models.loading import ModelOptions, load_policy
from pivot.models.rows import PromptWithResponses
from pivot.sampling import NativeSampler, SampleRequest, Sampling, decoder, native, sample_responses
from pivot.tiny import procedural
from pivot.types import Prompt


def sample(policy, prompts, num_samples, sampling, **options):
    encoded = [policy.encoder.encode(prompt) for prompt in prompts]
    found = dict(sample_responses(policy, encoded, num_samples, sampling, **options))
    return encoded, [found[i] for i in range(len(prompts))]


def mixed_prompts(picture):
    """Different lengths and image sizes, several images, and none."""
    return [
        procedural.make("angle", "train", 0),
        Prompt("two", "<image>Compare <image>.", "1", (picture(56, 112), picture(84, 56, "blue"))),
        Prompt("none", "How much is 2 + 2?", "4"),
        procedural.make("count", "train", 1),
    ]


def test_recorded_scores_are_those_of_a_plain_forward(policy, picture):
    encoded, found = sample(
        policy, mixed_prompts(picture), 3, Sampling(top_p=0.9, temperature=1.3, max_tokens=24)
    )
    units = [PromptWithResponses(e, [r.token_ids_T for r in g]) for e, g in zip(encoded, found, strict=True)]
    with torch.no_grad():
        plain = policy.score(units, policy.features(encoded), layout="repeated")
    row = 0
    for group in found:
        for response in group:
            end = len(response)
            torch.testing.assert_close(plain.logprobs_BT[row, :end], response.logprobs_T, atol=3e-5, rtol=0)
            torch.testing.assert_close(plain.entropy_BT[row, :end], response.entropy_T, atol=3e-5, rtol=0)
            row += 1


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_recorded_scores_do_not_depend_on_the_attention_kernel(policy, picture, attention):
    """Prompts of different lengths are padded, and each kernel has its own kind of mask."""
    other = load_policy("tiny", ModelOptions(attention=attention))
    encoded, found = sample(other, mixed_prompts(picture), 2, Sampling(max_tokens=6))
    units = [PromptWithResponses(e, [r.token_ids_T for r in g]) for e, g in zip(encoded, found, strict=True)]
    with torch.no_grad():
        plain = policy.score(units, policy.features(encoded), layout="tree")
    recorded = torch.nn.utils.rnn.pad_sequence(
        [r.logprobs_T for group in found for r in group], batch_first=True
    )
    torch.testing.assert_close(plain.logprobs_BT, recorded, atol=3e-5, rtol=0)


def test_greedy_decoding_is_hugging_faces(policy, picture):
    encoded, found = sample(policy, mixed_prompts(picture), 1, Sampling(temperature=0.0, max_tokens=20))
    for prompt, (response,) in zip(encoded, found, strict=True):
        ids = prompt.input_ids_L[None]
        visual = {}
        if prompt.images:
            visual = {
                "pixel_values": torch.cat([image.pixels for image in prompt.images]),
                "image_grid_thw": torch.tensor([image.grid for image in prompt.images]),
                "mm_token_type_ids": (ids == policy.family.image_token_id).int(),
            }
        policy.model.model.rope_deltas = None
        out = policy.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            temperature=None,
            max_new_tokens=20,
            suppress_tokens=policy.banned_ids,
            **visual,
        )
        assert out[0, len(prompt) :].tolist() == response.token_ids_T.tolist()


def test_draws_do_not_depend_on_the_batch(policy, picture):
    prompts = mixed_prompts(picture)
    sampling = Sampling(max_tokens=16)
    _, together = sample(policy, prompts, 2, sampling, key=(3, 1))
    _, apart = sample(policy, prompts, 2, sampling, key=(3, 1), batch_tokens=1)
    _, reordered = sample(policy, prompts[::-1], 2, sampling, key=(3, 1))
    for a, b, c in zip(together, apart, reordered[::-1], strict=True):
        for x, y, z in zip(a, b, c, strict=True):
            assert x.token_ids_T.tolist() == y.token_ids_T.tolist() == z.token_ids_T.tolist()
    _, other = sample(policy, prompts, 2, sampling, key=(3, 2))
    assert any(
        x.token_ids_T.tolist() != y.token_ids_T.tolist()
        for a, b in zip(together, other, strict=True)
        for x, y in zip(a, b, strict=True)
    )


def test_responses_end_with_the_end_of_turn_or_are_truncated(policy):
    prompts = [procedural.make("count", "train", i) for i in range(4)]
    _, found = sample(policy, prompts, 8, Sampling(max_tokens=40))
    responses = [r for group in found for r in group]
    for response in responses:
        ids = response.token_ids_T.tolist()
        assert (ids[-1] in policy.end_ids) == (not response.truncated)
        assert not set(ids[:-1]) & set(policy.end_ids)
        assert not set(ids) & set(policy.banned_ids)
        assert len(ids) == len(response.logprobs_T) == len(response.entropy_T)
    assert len({len(r) for r in responses}) > 1, "some leave the batch before others"


def test_min_tokens_holds_the_end_back(policy):
    _, found = sample(
        policy, [procedural.make("count", "train", 0)], 4, Sampling(max_tokens=30, min_tokens=30)
    )
    assert all(len(r) == 30 for r in found[0])


def test_one_prefill_and_one_vision_pass_a_prompt(policy, monkeypatch):
    prompts = [policy.encoder.encode(procedural.make("count", "train", i)) for i in range(3)]
    seen = []
    hidden = policy.hidden
    monkeypatch.setattr(
        policy, "hidden", lambda i, *a: seen.append(i["inputs_embeds"].shape[:2]) or hidden(i, *a)
    )
    list(sample_responses(policy, prompts, 8, Sampling(max_tokens=3)))
    assert [rows for rows, _ in seen] == [3], "the prompts themselves, once, not their repetitions"


def test_waiting_prompts_take_the_room_of_finished_ones(policy, monkeypatch):
    """Three of six prompts fit at once; the others start while some of the first are still being decoded."""
    tasks = ("count", "angle", "bars")
    prompts = [policy.encoder.encode(procedural.make(task, "train", i)) for i in range(2) for task in tasks]
    whole = dict(sample_responses(policy, prompts, 4, Sampling(max_tokens=64)))
    budget = 3 * (max(len(p) for p in prompts) + 4 * 64)
    held, started = [], []
    next_cohort = decoder.Decoder._next_cohort

    def spy(self):
        running = len(self.rows)
        chosen = next_cohort(self)
        if chosen:
            started.append((running, len(chosen)))
        return chosen

    def refilled(self, hidden_ND, plain=decoder.Decoder._refilled):
        hidden_ND = plain(self, hidden_ND)
        held.append(self._held_tokens())
        return hidden_ND

    monkeypatch.setattr(decoder.Decoder, "_next_cohort", spy)
    monkeypatch.setattr(decoder.Decoder, "_refilled", refilled)
    found = dict(sample_responses(policy, prompts, 4, Sampling(max_tokens=64), batch_tokens=budget))
    assert max(held) <= budget
    assert started[0] == (0, 3)
    assert any(running for running, _ in started[1:]), "a cohort joined others"
    assert sum(size for _, size in started) == 6
    for index, responses in whole.items():
        for mine, other in zip(found[index], responses, strict=True):
            assert mine.token_ids_T.tolist() == other.token_ids_T.tolist()
            torch.testing.assert_close(mine.logprobs_T, other.logprobs_T, atol=3e-5, rtol=0)


def test_looking_rarely_for_finished_sequences_changes_nothing(policy, monkeypatch):
    """On a GPU the host looks every few tokens: sequences go on past their end until then."""
    prompts = [policy.encoder.encode(procedural.make("count", "train", i)) for i in range(4)]
    sampling = Sampling(max_tokens=45)
    often = dict(sample_responses(policy, prompts, 4, sampling))
    monkeypatch.setattr(decoder, "CPU_CHECK_EVERY", 8)
    rarely = dict(sample_responses(policy, prompts, 4, sampling, batch_tokens=2 * (200 + 4 * 45)))
    for index, responses in often.items():
        for mine, other in zip(rarely[index], responses, strict=True):
            assert mine.token_ids_T.tolist() == other.token_ids_T.tolist()
            assert mine.truncated == other.truncated


def test_scores_in_bfloat16_keep_their_precision():
    """Scores rounded to bfloat16 would shift attention weights by several percent."""
    policy = load_policy("tiny", ModelOptions(dtype="bfloat16"))
    prompts = [policy.encoder.encode(procedural.make("count", "train", i)) for i in range(3)]
    kinds = []
    scores = decoding._scores
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "_scores", lambda *a: kinds.append(scores(*a).dtype) or scores(*a))
        list(sample_responses(policy, prompts, 2, Sampling(max_tokens=4)))
    assert set(kinds) == {torch.float32}


def test_running_out_of_memory_halves_what_is_held_in_training_and_evaluation(policy, monkeypatch):
    prompts = [procedural.make("count", "train", i) for i in range(4)]
    request = SampleRequest(2, Sampling(max_tokens=8), key=(0,))
    real, budgets = native.sample_responses, []

    def sample(*args, batch_tokens, **kwargs):
        budgets.append(batch_tokens)
        if batch_tokens > 300:
            raise MemoryError
        return real(*args, batch_tokens=batch_tokens, **kwargs)

    monkeypatch.setattr(native, "sample_responses", sample)
    sampler = NativeSampler(policy)
    found = dict(sampler.sample(prompts, request))
    assert sorted(found) == [0, 1, 2, 3]
    assert budgets[0] == native.CPU_BATCH_TOKENS
    assert budgets[-1] == sampler.batch_tokens <= 300
    with pytest.raises(UserError, match=r"rollout.batch_tokens was not"):
        dict(NativeSampler(policy, halve_on_oom=False).sample(prompts, request))
