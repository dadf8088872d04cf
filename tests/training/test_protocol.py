"""The training protocol where the paper or its sources are definite: full steps, temperature, experience, scores."""

import math
import signal

import numpy as np
import pytest
import torch

from pivot import recipes
from pivot.config import validate
from pivot.engines.local import load_model
from pivot.errors import UserError
from pivot.experience import ExperienceBuffer
from pivot.runs import run as run_module
from pivot.runs.run import resume, train
from pivot.training import selection
from pivot.training.anchors import AnchorSelector, _select, candidates_of
from pivot.training.batch import minibatch_sizes, with_experience
from pivot.types import Anchor, Prompt, Response, Reward, RolloutGroup


def test_the_paper_recipe_and_the_default_try_twenty_times():
    assert recipes.get("geo3k-3b").rollout.max_tries == 20
    assert recipes.get("tiny").rollout.max_tries == 20
    assert recipes.get("tiny").rollout.oversample


def test_a_share_of_a_batch_is_rounded_not_cut(small_config, make_trainer):
    """0.29 * 100 is 28.999...: 29 prompts are meant."""
    settings = ["train.prompts_per_step=100", "method.replay_share=0.29", "data.size=200"]
    trainer = make_trainer(small_config("ser", *settings, "method.warmup_share=0"))
    trainer.gate.observe(1.0, 0)
    quotas = trainer._open(1).quotas
    trainer.judge.close()
    assert (quotas.num_replayed, quotas.num_fresh) == (29, 71)


# Minibatches -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_groups", "minibatch", "sizes"),
    [
        (384, 128, [128, 128, 128]),
        (320, 128, [128, 128, 64]),  # just half a minibatch is one of its own
        (300, 128, [128, 172]),
        (9, 4, [4, 5]),
        (10, 4, [4, 4, 2]),
        (7, 3, [3, 4]),
        (8, 3, [3, 3, 2]),
        (1, 4, [1]),  # there is none before it
        (5, 128, [5]),
    ],
)
def test_a_small_leftover_joins_the_minibatch_before_it(num_groups, minibatch, sizes):
    assert minibatch_sizes(num_groups, minibatch) == sizes


def test_a_leftover_group_gets_no_update_of_its_own(small_config, make_trainer):
    """Five groups in minibatches of four: one update, not one of four groups and one of a single group."""
    settings = ["train.prompts_per_step=5", "train.minibatch_prompts=4", "rollout.max_tries=20"]
    trainer = make_trainer(small_config("dapo", *settings))
    outcome = trainer.step()
    trainer.judge.close()
    assert len(outcome.selection.kept) == 5
    assert outcome.update.num_updates == 1


# Temperature -----------------------------------------------------------------------------------------------------


def test_the_loss_belongs_to_the_distribution_that_was_sampled(small_config, make_trainer):
    """Decoding, scoring and the update all divide the logits by the sampling temperature."""
    trainer = make_trainer(small_config("pivot", "rollout.temperature=0.7", "train.minibatch_prompts=6"))
    cold = make_trainer(
        small_config(
            "pivot",
            "rollout.temperature=0.7",
            "train.minibatch_prompts=6",
            "rollout.logprob_temperature=1",
        )
    )
    found, other = trainer.step(), cold.step()
    for one in (trainer, cold):
        one.judge.close()
    group, same = found.selection.sampled[0], other.selection.sampled[0]
    response = group.responses[0]
    assert torch.equal(response.token_ids_T, same.responses[0].token_ids_T), "the draw is the same either way"
    sharper = log_softmax_by_hand(group, 0.7)
    torch.testing.assert_close(response.logprobs_T, sharper, atol=3e-5, rtol=0)
    plain = log_softmax_by_hand(group, 1.0)
    torch.testing.assert_close(same.responses[0].logprobs_T, plain, atol=3e-5, rtol=0)
    assert float((sharper - plain).abs().max()) > 0.01
    # One minibatch of on-policy tokens: every ratio is 1, at either temperature, or the two sides disagree.
    for outcome in (found, other):
        assert outcome.update.terms["ratio_max"] == pytest.approx(1.0, abs=1e-3)


def log_softmax_by_hand(group, temperature: float) -> torch.Tensor:
    """From a plain forward of a fresh model over prompt and response."""
    policy = load_model(recipes.get("tiny"))
    prompt, ids = policy.encoder.encode(group.prompt), group.responses[0].token_ids_T
    with torch.no_grad():
        whole = torch.cat([prompt.input_ids_L, ids])[None]
        last = int(prompt.next_position)
        text = torch.arange(last, last + len(ids)).expand(3, -1)
        positions = torch.cat([prompt.position_ids_AL, text], dim=1)[:, None]
        inputs = policy.embed(whole, policy.features([prompt]))
        hidden = policy.hidden(inputs, positions, None)[0, len(prompt) - 1 : -1]
        logits = (hidden @ policy.head_weight_VD.T).float() / temperature
    return logits.log_softmax(-1).gather(-1, ids[:, None])[:, 0]


def test_entropies_and_support_use_the_same_temperature(small_config, make_trainer):
    """c = 1 - q/p of the sampled distribution, H of it: recomputed by a second pass they are the same."""
    batches = []
    for recompute in ("false", "true"):
        trainer = make_trainer(
            small_config("vaa", "rollout.temperature=0.6", f"rollout.recompute_logprobs={recompute}")
        )
        batches.append(trainer.step().batch)
        trainer.judge.close()
    for name in ("old_logprobs_BT", "entropy_BT", "corrupted_logprobs_BT"):
        torch.testing.assert_close(getattr(batches[0], name), getattr(batches[1], name), atol=5e-5, rtol=0)


def test_at_temperature_one_nothing_changes(tmp_path, small_config, weights):
    train(small_config("pivot"), tmp_path / "default", quiet=True)
    train(small_config("pivot", "rollout.logprob_temperature=1"), tmp_path / "one", quiet=True)
    first, second = weights(tmp_path / "default"), weights(tmp_path / "one")
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_temperature_of_nothing_is_refused(small_config):
    with pytest.raises(UserError, match=r"rollout.logprob_temperature is 0.0, but must be above 0"):
        validate(small_config("pivot", "rollout.logprob_temperature=0"))


# Off-PG ----------------------------------------------------------------------------------------------------------


def test_an_experience_brings_the_rewards_it_was_recorded_with(small_config, make_trainer, prime):
    """A success that did not follow the template keeps its format reward of 0."""
    trainer = make_trainer(small_config("off-pg-vaa", "method.warmup_share=0"))
    prime(trainer)
    buffer = trainer.sources.buffer
    state = buffer.state_dict()
    assert set(state["arrays"]["response.format"].tolist()) <= {0.0, 1.0}
    state["arrays"]["response.format"][:] = 0.0
    buffer.load_state_dict(state)
    outcome = trainer.step()
    trainer.judge.close()
    rows = outcome.batch
    assert rows.off_policy_B.any()
    assert (rows.format_B[rows.off_policy_B] == 0.0).all()
    assert (rows.rewards_B[rows.off_policy_B] == 1.0).all()


def test_every_group_that_off_pg_trains_on_is_informative_with_its_experience(
    small_config, make_trainer, prime
):
    trainer = make_trainer(
        small_config("off-pg-vaa", "method.warmup_share=0", "rollout.max_tries=20", "data.size=48")
    )
    prime(trainer)
    groups = []
    for _ in range(3):
        outcome = trainer.step()
        groups += outcome.groups
        off_policy_PG = outcome.batch.by_prompt(outcome.batch.off_policy_B)
        has_anchor = torch.tensor([g.anchor is not None for g in outcome.groups])
        assert torch.equal(off_policy_PG.any(dim=1), has_anchor)
    trainer.judge.close()
    assert any(g.replayed for g in groups)
    assert all(g.is_informative for g in groups), "the experience is in them"


def response(logprobs_T):
    ids = torch.tensor([5, 6, 7])
    return Response(ids, "", logprobs_T, logprobs_T, truncated=False, reward=Reward(1.0, 1.0, "correct"))


def test_missing_log_probs_are_computed_and_no_nan_enters_a_loss(small_config, make_trainer):
    """Without `rollout.recompute_logprobs`: one response without them is enough."""
    config = small_config("vaa", "train.overlap=false")
    trainer, plain = make_trainer(config), make_trainer(config)
    reward = trainer._reward

    def without_log_probs(groups):
        reward(groups)
        groups[0].responses[0].logprobs_T = groups[0].responses[0].entropy_T = None

    trainer._reward = without_log_probs
    outcome, other = trainer.step(), plain.step()
    for one in (trainer, plain):
        one.judge.close()
    assert all(math.isfinite(norm) for norm in outcome.update.grad_norms)
    torch.testing.assert_close(outcome.batch.old_logprobs_BT, other.batch.old_logprobs_BT, atol=5e-5, rtol=0)


@pytest.mark.parametrize("missing", ["recorded_logprobs_T", "reward"])
def test_an_experience_without_its_records_is_an_error(missing):
    known = {"recorded_logprobs_T": torch.zeros(3), "reward": Reward(1.0, 0.0, "correct"), missing: None}
    anchor = Anchor(torch.tensor([5, 6, 7]), logprobs_T=torch.zeros(3), entropy_T=torch.zeros(3), **known)
    group = RolloutGroup(Prompt("p7", "?", "1"), [response(torch.zeros(3))], replayed=True, anchor=anchor)
    with pytest.raises(UserError, match=r"prompt 'p7' was recorded without"):
        with_experience(group)


def test_a_sampler_without_log_probs_of_the_policy_gets_them_from_a_pass_of_our_own(
    small_config, make_trainer
):
    """As with vLLM and SGLang, whose log-probs are renormalised by top-p: what is stored are the policy's own."""
    config = small_config(
        "off-pg-vaa", "rollout.recompute_logprobs=true", "method.warmup_share=0", "train.overlap=false"
    )
    trainer, plain = make_trainer(config), make_trainer(config)
    sample, score = trainer.engine.sample, trainer.engine.score
    calls = []

    def scored(request):
        calls.append("score")
        return score(request)

    def without_log_probs(*arguments):
        calls.append("sample")
        found = sample(*arguments)
        for one in (response for responses in found for response in responses):
            one.logprobs_T = one.entropy_T = None
        return found

    trainer.engine.sample, trainer.engine.score = without_log_probs, scored
    for _ in range(2):
        calls.clear()
        outcome, other = trainer.step(), plain.step()
        assert calls == sorted(calls, key=["sample", "score"].index), "servers sleep once anything is scored"
        assert all(math.isfinite(norm) for norm in outcome.update.grad_norms)
        assert outcome.update.terms["total"] == pytest.approx(other.update.terms["total"], abs=1e-4)
    stored, known = (one.sources.buffer.state_dict()["arrays"]["logprobs"] for one in (trainer, plain))
    assert len(stored)
    np.testing.assert_allclose(stored, known, atol=5e-5)
    for one in (trainer, plain):
        one.judge.close()


# Collected scores ------------------------------------------------------------------------------------------------


def candidate(entropy, dependency):
    return Anchor(torch.tensor([1, 2]), entropy=entropy, dependency=dependency)


def test_an_unscored_candidate_is_never_compared():
    """`None` used to count as entropy 0, the most stable of all."""
    assert _select([candidate(0.5, 0.1), candidate(0.2, 0.9)], keep=0.5) == 1
    with pytest.raises(AssertionError, match="unscored"):
        _select([candidate(0.5, 0.1), candidate(None, None)], keep=0.5)


def test_collected_scores_cover_what_the_filter_dropped_and_what_nobody_scored(small_config, make_trainer):
    trainer = make_trainer(
        small_config("ser", "method.anchor_scores=collected", "method.warmup_share=0", "rollout.responses=2")
    )
    buffer: ExperienceBuffer = trainer.sources.buffer
    sampled = [*trainer.step().selection.sampled, *trainer.step().selection.sampled]
    assert any(g.success_rate == 1.0 for g in sampled), "some prompts are solved by both responses"
    for row in buffer.rows():
        assert all(c.is_scored for c in buffer.candidates(row.prompt_id)), row
    # A candidate that has no scores, as after a change of the setting: it is scored before anything is chosen.
    state = buffer.state_dict()
    for name in ("entropy", "dependency"):
        state["arrays"][f"response.{name}"][:] = math.nan
    buffer.load_state_dict(state)
    outcome = trainer.step()
    trainer.judge.close()
    anchors = [g.anchor for g in outcome.selection.kept if g.anchor is not None]
    assert anchors
    assert outcome.anchors.dependency is not None


@pytest.mark.parametrize(("scores", "is_old"), [("collected", True), ("current", False)])
def test_collected_scores_decide_as_they_were_collected(
    small_config, make_trainer, monkeypatch, scores, is_old
):
    """The candidates' H and V are those of the step that recorded them, not of today's weights."""
    drawn = {}

    def noted(buffer, draw, step):
        found = candidates_of(buffer, draw, step)
        drawn[draw.prompt_id] = [candidate.dependency for candidate in found]
        return found

    monkeypatch.setattr(selection, "candidates_of", noted)
    trainer = make_trainer(
        small_config("ser", f"method.anchor_scores={scores}", "method.warmup_share=0", "data.size=12")
    )
    ages, same = [], []
    for _ in range(4):
        outcome = trainer.step()
        ages.append(outcome.anchors.age)
        for group in (g for g in outcome.selection.kept if g.anchor is not None):
            known = drawn[group.prompt.id]
            if len(known) > 1:
                same.append(group.anchor.dependency in known)
    trainer.judge.close()
    assert same
    assert all(same) == is_old
    assert (max(ages) > 0) == is_old


def test_all_candidates_of_a_prompt_are_scored_if_one_is_not(small_config):
    method = small_config("ser", "method.anchor_scores=collected").method
    selector = AnchorSelector(method, None, ExperienceBuffer(), {})
    scored, unscored = candidate(0.1, 0.2), candidate(0.3, None)

    def asked(*candidates):
        return requests_of(selector, candidates)

    assert asked(scored, unscored) == [("both", 2)]
    assert asked(scored, scored) == []
    assert asked(unscored) == [("clean", 1)], "there is nothing to choose, but the loss needs its log-probs"


def requests_of(selector, *groups):
    """View and number of candidates of each group, as they would be scored."""
    drawn = [RolloutGroup(Prompt("p", "?", "1"), candidates=tuple(one), prepared=[]) for one in groups]
    return [(r.view, len(unit.responses)) for r in selector.scoring(drawn, 1) for unit in r.units]


def test_no_corrupted_image_where_entropy_alone_decides(small_config):
    """Of two or three candidates one stays after H (alpha = 0.5), whatever its V."""
    groups = [[candidate(0.1, None) for _ in range(count)] for count in (1, 2, 3, 4, 5)]

    def asked(*settings):
        return requests_of(
            AnchorSelector(small_config("ser", *settings).method, None, ExperienceBuffer(), {}), *groups
        )

    only = [("clean", 1)]
    assert asked() == [("both", 4), ("both", 5), ("clean", 2), ("clean", 3), *only]
    assert asked("method.anchor_keep=1") == [*(("both", n) for n in (2, 3, 4, 5)), *only]
    assert asked("method.anchor_keep=0.2") == [*(("clean", n) for n in (2, 3, 4, 5)), *only]
    assert asked("method.anchor_scores=collected") == [*(("both", n) for n in (2, 3, 4, 5)), *only], (
        "for later candidates"
    )


def test_the_anchor_is_the_one_that_all_scores_would_choose(small_config, make_trainer, monkeypatch):
    """Steps that score every candidate under both images choose the same anchors, and train to the same weights."""

    def steps(count):
        trainer = make_trainer(small_config("pivot", "method.warmup_share=0", "data.size=8", "train.steps=6"))
        groups = [g for _ in range(count) for g in trainer.step().selection.kept if len(g.candidates) > 1]
        trainer.judge.close()
        weights = torch.cat(
            [p.detach().flatten() for p in trainer.engine.policy.trainable_parameters().values()]
        )
        return groups, weights

    groups, weights = steps(6)
    monkeypatch.setattr(AnchorSelector, "_compares", lambda selector, num_candidates: True)
    fully, expected = steps(6)
    assert [g.anchor.token_ids_T.tolist() for g in groups] == [g.anchor.token_ids_T.tolist() for g in fully]
    # Other rows beside them in a micro-batch: the anchors' log-probs are rounded differently.
    torch.testing.assert_close(weights, expected, atol=1e-5, rtol=1e-5)
    for group in groups:
        count = len(group.candidates)
        assert [c.dependency is not None for c in group.candidates] == [count > 3] * count
    assert {len(g.candidates) > 3 for g in groups} == {True, False}


# The state of oversampling ---------------------------------------------------------------------------------------


def test_stopping_and_resuming_keeps_what_oversampling_knows(tmp_path, small_config, repeatable, monkeypatch):
    """The number of prompts in a round depends on earlier steps: a resumed run must know them."""
    settings = ["train.steps=6", "checkpoint.every=3", "rollout.max_tries=20", "data.size=64"]
    config = small_config("pivot", *settings)
    train(config, tmp_path / "whole", quiet=True)
    original = run_module.Run._step

    def stop_after_three(self, *arguments):
        row = original(self, *arguments)
        if row["step"] == 3:
            self.stopping.signal = signal.SIGTERM
        return row

    monkeypatch.setattr(run_module.Run, "_step", stop_after_three)
    assert not train(config, tmp_path / "parts", quiet=True).finished
    monkeypatch.undo()
    assert resume(tmp_path / "parts", quiet=True).finished
    rows = repeatable(tmp_path / "parts")
    assert rows == repeatable(tmp_path / "whole")
    assert any(row["rollout/groups_surplus"] > 0 for row in rows), "oversampling was at work"
    assert all(row["rollout/groups_kept"] == row["rollout/groups_wanted"] for row in rows)
