"""Candidates scored on the keys and values of sampling's own prefill: the same numbers, no prompt computed twice."""

import pytest
import torch

from pivot.engines import ahead, local
from pivot.engines.base import ScoreRequest
from pivot.engines.local import LocalEngine
from pivot.models.rows import PromptWithResponses
from pivot.sampling import SampleRequest, Sampling
from pivot.training import build
from pivot.training.clock import PhaseClock
from pivot.training.prompts import training_prompts

SETTINGS = ("method.warmup_share=0", "train.lr=1e-3", "rollout.max_tries=2", "rollout.max_tokens=64")
REQUEST = SampleRequest(2, Sampling(max_tokens=8), (0, 1))


@pytest.fixture
def config(small_config):
    return small_config("pivot", *SETTINGS, "train.overlap=false")


@pytest.fixture
def scored(monkeypatch):
    """Notes what the scorer is asked for, as (view, prompt id)."""
    seen = []
    plain = local.Scorer.score

    def noted(scorer, request):
        seen.extend((request.view, unit.prompt.prompt.id) for unit in request.units)
        return plain(scorer, request)

    monkeypatch.setattr(local.Scorer, "score", noted)
    return seen


def some_units(engine, config, lengths):
    prompts = list(training_prompts(config).by_id.values())
    generator = torch.Generator().manual_seed(1)
    return [
        PromptWithResponses(
            engine.prepare(prompt), [torch.randint(0, 90, (n,), generator=generator) for n in own]
        )
        for prompt, own in zip(prompts, lengths, strict=False)
    ]


@pytest.mark.parametrize("most_tokens", [8192, 150])
def test_the_scores_are_those_of_a_pass_of_their_own(config, scored, most_tokens):
    """Prompts and responses of several lengths, one of a single token, all together or a unit at a time."""
    engine = LocalEngine.open(config)
    units = some_units(engine, config, [[5, 2], [1], [9, 1, 6], [1, 1]])
    assert len({len(unit.prompt) for unit in units}) > 1
    expected = engine.scorer.score(ScoreRequest(units, 1, "clean"))
    engine.packing.micro_batch_tokens = most_tokens
    request = ScoreRequest(units, 1, "clean")
    scored.clear()
    engine.sample([unit.prompt for unit in units], REQUEST, [request])
    found = engine.score(request)
    assert not scored
    assert torch.equal(found.mask_BT, expected.mask_BT)
    torch.testing.assert_close(found.logprobs_BT, expected.logprobs_BT, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.entropy_BT, expected.entropy_BT, atol=1e-5, rtol=1e-5)


def test_what_needs_another_image_or_prompt_gets_a_pass_of_its_own(config, scored):
    engine = LocalEngine.open(config)
    units = some_units(engine, config, [[5, 2], [3], [4]])
    both, clean = ScoreRequest(units[:1], 1, "both"), ScoreRequest(units[1:], 1, "clean")
    engine.sample([unit.prompt for unit in units[:2]], REQUEST, [both, clean])
    assert engine.score(both).divergence_BT is not None
    engine.score(clean)
    assert scored == [("both", units[0].prompt.prompt.id), ("clean", units[2].prompt.prompt.id)]


def test_draws_are_the_same_with_and_without(config):
    engine = LocalEngine.open(config)
    units = some_units(engine, config, [[5, 2], [3], [4]])
    prompts = [unit.prompt for unit in units]
    plain = engine.sample(prompts, REQUEST)
    for ours, theirs in zip(
        engine.sample(prompts, REQUEST, [ScoreRequest(units, 1, "clean")]), plain, strict=True
    ):
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a.token_ids_T, b.token_ids_T)
            assert torch.equal(a.logprobs_T, b.logprobs_T)


def test_scores_are_forgotten_with_the_weights(config, scored):
    engine = LocalEngine.open(config)
    (unit,) = some_units(engine, config, [[5, 2]])
    engine.sample([unit.prompt], REQUEST, [ScoreRequest([unit], 1, "clean")])
    engine._begin(2)
    engine.score(ScoreRequest([unit], 2, "clean"))
    assert scored


def test_candidates_that_entropy_chooses_from_need_no_further_pass(config, scored):
    engine, judge = LocalEngine.open(config), build.build_judge(config)
    trainer = build.build_trainer(config, engine, training_prompts(config).by_id, judge, PhaseClock())
    outcomes = [trainer.step() for _ in range(3)]
    judge.close()
    anchored = [group for one in outcomes for group in one.selection.kept if group.anchor]
    assert any(1 < len(group.candidates) <= 3 for group in anchored)
    assert any(len(group.candidates) == 1 for group in anchored)
    assert not [name for view, name in scored if view == "clean"]
    for group in anchored:
        assert group.anchor.logprobs_T is not None
        assert len(group.anchor.logprobs_T) == len(group.anchor)


def test_with_a_thread_of_its_own_nothing_is_continued(small_config, monkeypatch):
    """Which of the two is used depends on the configuration alone: their last bits differ."""
    monkeypatch.setattr(local.ScoreContinued, "__call__", None)
    config = small_config("pivot", *SETTINGS)
    for free in (True, False):
        monkeypatch.setattr(ahead, "has_free_core", lambda free=free: free)
        engine = LocalEngine.open(config)
        units = some_units(engine, config, [[5, 2]])
        engine.sample([units[0].prompt], REQUEST, [ScoreRequest(units, 1, "clean")])
        assert len(engine.score(ScoreRequest(units, 1, "clean")).mask_BT) == 2
