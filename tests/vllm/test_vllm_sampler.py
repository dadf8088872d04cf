"""vLLM on a model's folder; runs in an environment with vLLM (`make test-vllm`), skips elsewhere."""

import pytest
import torch

from pivot.models.loading import load_policy, save_policy
from pivot.models.rows import PromptWithResponses
from pivot.sampling import SampleRequest, Sampling
from pivot.tiny import procedural
from pivot.types import Prompt

pytest.importorskip("vllm")


def request(blank=False):
    return SampleRequest(8, Sampling(max_tokens=24), (0, "evaluation"), blank)


@pytest.fixture(scope="module")
def sampler(tmp_path_factory):
    """On a folder as a run exports it."""
    from pivot.sampling.vllm_sampler import VllmSampler

    folder = tmp_path_factory.mktemp("exported")
    save_policy(load_policy("tiny"), folder)
    found = VllmSampler(folder)
    yield found
    found.close()


@pytest.fixture(scope="module")
def drawn(sampler, picture):
    """Eight samples each: a task's image, two images of other sizes that must be resized, none."""
    prompts = [
        procedural.make("angle", "test", 0),
        Prompt("two", "<image>Compare <image>.", "1", (picture(60, 117), picture(190, 130, "blue"))),
        Prompt("none", "How much is 2 + 2?", "4"),
    ]
    found = {blank: dict(sampler.sample(prompts, request(blank))) for blank in (False, True)}
    return prompts, found


@pytest.mark.parametrize("blank", [False, True])
def test_log_probs_are_the_policys_own(policy, drawn, blank):
    from pivot.models.corruption import Corruption, Corruptor

    prompts, found = drawn
    painter = Corruptor(policy.encoder, Corruption(kind="grey"), 0)
    for index, prompt in enumerate(prompts):
        encoded = policy.encoder.encode(prompt)
        encoded = painter.corrupt(encoded, 0) if blank else encoded
        policy.forget_features()
        responses = found[blank][index]
        assert len(responses) == 8
        with torch.no_grad():
            plain = policy.score(
                [PromptWithResponses(encoded, [r.token_ids_T for r in responses])],
                policy.features([encoded]),
                layout="repeated",
            )
        for row, response in enumerate(responses):
            expected = plain.logprobs_BT[row, : len(response)]
            torch.testing.assert_close(response.sampler_logprobs_T, expected, atol=1e-3, rtol=0)


def test_samples_differ_end_and_never_hold_an_image_token(policy, drawn):
    _, found = drawn
    responses = [r for group in found[False].values() for r in group]
    assert len({tuple(r.token_ids_T.tolist()) for r in found[False][0]}) > 1
    for response in responses:
        ids = response.token_ids_T.tolist()
        assert (ids[-1] in policy.end_ids) == (not response.truncated)
        assert not set(ids) & set(policy.banned_ids)
        assert len(response.sampler_logprobs_T) == len(ids) <= 24
        assert response.logprobs_T is None, "the trainer computes its own"


def test_a_repeated_evaluation_is_the_same(sampler, drawn):
    prompts, found = drawn
    again = dict(sampler.sample(prompts[:1], request()))
    assert [r.text for r in again[0]] == [r.text for r in found[False][0]]
