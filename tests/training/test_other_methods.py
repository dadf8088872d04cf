"""NoisyRollout, ExGRPO, SSR and PIVOT on top of other losses, through the real loop."""

import itertools
import pickle
from collections import Counter

import pytest
import torch

from pivot.config.methods import find_method
from pivot.data.images import open_rgb
from pivot.data.noise import noisy_prompt
from pivot.engines.base import ScoreRequest
from pivot.errors import UserError
from pivot.models.rows import PromptWithResponses
from pivot.runs.run import train

METHODS = (
    "gspo", "dr-grpo", "cispo", "sapo", "rloo", "reinforce-pp", "noisy-rollout", "exgrpo", "ssr", "grpo-replay",
    "gspo+pivot", "cispo+pivot", "dr-grpo+pivot+noisy+ssr",
)  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_it_trains(tmp_path, small_config, repeatable, method, explained):
    config = small_config(method, "train.steps=2", "method.warmup_share=0", "log.rollouts_per_step=1")
    assert train(config, tmp_path / method, quiet=True).finished
    rows = repeatable(tmp_path / method)
    assert all(row["optim/updates"] > 0 and row["optim/grad_norm"] > 0 for row in rows)
    assert set().union(*rows) <= explained
    on_top_of_it = {"loss/calibration", "visual/support_mean", "buffer/size"}
    assert on_top_of_it.issubset(rows[-1]) == ("+pivot" in method)
    assert ("rollout/noise_level" in rows[-1]) == (config.method.noise is not None)
    assert ("rollout/groups_stored" in rows[-1]) == (config.method.stored is not None)


def test_a_module_that_does_not_fit_is_one_sentence():
    with pytest.raises(UserError, match=r"^There is no module 'pivo' of methods; the nearest is pivot\.$"):
        find_method("gspo+pivo")
    with pytest.raises(UserError, match=r"^Method vppo\+vaa is not possible: utility cannot be"):
        find_method("vppo+vaa")


# NoisyRollout ------------------------------------------------------------------------------------------------


@pytest.fixture
def noisy(small_config, make_trainer):
    trainer = make_trainer(small_config("noisy-rollout", "train.steps=6", "rollout.responses=4"))
    yield trainer
    trainer.judge.close()


def test_half_of_each_group_is_drawn_under_a_noisy_image(noisy):
    asked, real = [], noisy.engine.sample

    def sample(prompts, request, meanwhile=()):
        found = real(prompts, request, meanwhile)
        tokens = {
            p.prompt.id: [r.token_ids_T for r in group] for p, group in zip(prompts, found, strict=True)
        }
        asked.append((prompts, request.num_samples, tokens))
        return found

    noisy.engine.sample = sample
    outcome = noisy.step()
    assert outcome.noise_level == int(noisy.method.noise.level(1, 6)) > 400
    (clean, num_clean, clean_tokens), (seen, num_noisy, noisy_tokens) = asked
    assert (num_clean, num_noisy) == (2, 2)
    for one, other in zip(clean, seen, strict=True):
        expected = noisy_prompt(one.prompt, outcome.noise_level, (noisy.plan.seed, 1))
        assert other.prompt == expected
        assert not torch.equal(one.images[0].values, other.images[0].values)
    for group in outcome.groups:
        drawn = [*clean_tokens[group.prompt.id], *noisy_tokens[f"{group.prompt.id}~noisy"]]
        assert [r.token_ids_T.tolist() for r in group.responses] == [tokens.tolist() for tokens in drawn]
        assert "~noisy" not in group.prepared.prompt.id


def test_its_ratios_start_at_one_under_the_clean_image(small_config, make_trainer):
    trainer = make_trainer(small_config("noisy-rollout", "train.minibatch_prompts=6", "train.steps=6"))
    found = {}
    real = trainer.engine.update

    def update(units, batch, lr):
        request = ScoreRequest(units, 1, "clean")
        found["apart"] = trainer.engine.score(request).logprobs_BT - batch.old_logprobs_BT
        found["mask"] = batch.mask_BT
        return real(units, batch, lr)

    trainer.engine.update = update
    outcome = trainer.step()
    trainer.judge.close()
    assert found["apart"][found["mask"]].abs().max() < 1e-5
    assert outcome.update.terms["ratio_sum"] == pytest.approx(outcome.update.terms["ratio_tokens"], rel=1e-5)


def test_noise_depends_on_seed_step_and_prompt_alone(noisy):
    prompt = next(iter(noisy.sources.prompts.values()))
    pictures = [
        open_rgb(noisy_prompt(prompt, level, key).images[0]).tobytes()
        for level, key in itertools.product((0, 300), ((0, 1), (0, 1), (0, 2), (1, 1)))
    ]
    assert pictures[0] == open_rgb(prompt.images[0]).tobytes(), "level 0 is the image itself"
    assert pictures[4] == pictures[5]
    assert len(set(pictures[4:])) == 3
    sent = pickle.loads(pickle.dumps(noisy_prompt(prompt, 300, (0, 1))))
    assert open_rgb(sent.images[0]).tobytes() == pictures[4], "as a rollout replica receives it"


# Stored groups -----------------------------------------------------------------------------------------------


def test_stored_groups_take_the_places_of_flat_ones_with_their_own_ratios(small_config, make_trainer):
    trainer = make_trainer(small_config("ssr", "train.minibatch_prompts=6", "train.lr=1e-3"))
    first, second = trainer.step(), trainer.step()
    trainer.judge.close()
    flat = [g for g in second.selection.kept if len(set(g.accuracies)) == 1]
    stored = [g for g in second.groups if g.responses[0].stored]
    assert second.num_stored == len(stored) == len(flat) > 0
    assert len(second.groups) == 6
    earlier = {g.prompt.id: g for g in first.groups}
    batch, size = second.batch, second.batch.group_size
    for place, group in enumerate(second.groups):
        if not group.responses[0].stored:
            continue
        before = earlier[group.prompt.id]
        assert group.accuracies == before.accuracies
        for i, (response, was) in enumerate(zip(group.responses, before.responses, strict=True)):
            row, length = place * size + i, len(response)
            assert torch.equal(response.token_ids_T, was.token_ids_T)
            torch.testing.assert_close(batch.old_logprobs_BT[row, :length], was.logprobs_T, rtol=0, atol=1e-5)
            assert not torch.allclose(
                batch.old_logprobs_BT[row, :length], batch.clean_logprobs_BT[row, :length]
            )
    fresh = [g for g in first.groups if len(set(g.accuracies)) > 1]
    assert len(trainer.store) == len(
        {g.prompt.id for g in [*fresh, *second.groups] if len(set(g.accuracies)) > 1}
    )


# ExGRPO ------------------------------------------------------------------------------------------------------


def test_exgrpo_puts_the_lowest_entropy_success_into_the_last_slot(small_config, make_trainer, prime):
    config = small_config("exgrpo", "train.minibatch_prompts=6", "method.warmup_share=0", "train.lr=1e-3")
    trainer = make_trainer(config)
    views = Counter()
    real = trainer.engine.score

    def score(request):
        views[request.view] += 1
        return real(request)

    trainer.engine.score = score
    prime(trainer)
    outcome = trainer.step()
    replayed = [(p, g) for p, g in enumerate(outcome.groups) if g.replayed]
    assert len(replayed) == 3
    assert set(views) == {"clean"}, "no corrupted image is needed"
    trainer.engine.score = real
    for place, group in replayed:
        row = place * outcome.batch.group_size + outcome.batch.group_size - 1
        assert outcome.batch.off_policy_B[row]
        assert torch.equal(group.responses[-1].token_ids_T, group.anchor.token_ids_T)
        assert group.anchor.entropy == min(c.entropy for c in group.candidates)
        recorded = group.anchor.recorded_logprobs_T
        torch.testing.assert_close(outcome.batch.old_logprobs_BT[row, : len(recorded)], recorded)
    assert any(len(g.candidates) > 1 for _, g in replayed)
    trainer.judge.close()


def test_scores_of_the_units_are_those_that_exgrpo_chose_by(small_config, make_trainer, prime):
    """The entropies that decide are today's."""
    trainer = make_trainer(small_config("exgrpo", "method.warmup_share=0"))
    prime(trainer)
    selection = trainer._open(1)
    groups = trainer._sample(selection.draw(), selection)
    trainer._reward(groups)
    trainer.anchor_selector.fix(groups, 1)
    several = next(g for g in groups if len(g.candidates) > 1)
    unit = PromptWithResponses(several.prepared, [c.token_ids_T for c in several.candidates])
    found = trainer.engine.score(ScoreRequest([unit], 1, "clean"))
    means = [float(found.entropy_BT[i, : len(c)].mean()) for i, c in enumerate(several.candidates)]
    assert several.anchor is several.candidates[means.index(min(means))]
    trainer.judge.close()
