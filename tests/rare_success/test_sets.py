"""Sets of a chosen success rate: how prompts are chosen, and that sets are the same every time."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.rare_success.choice import Counted, choose, expected_rates, fit_beta, informative_share
from experiments.rare_success.sets import ROUNDS, SECOND, Counts, SetPlan, check_sets, make_sets
from pivot.config import DataConfig
from pivot.config.datasets import load_set
from pivot.errors import UserError
from pivot.seeding import stable_seed
from pivot.tiny import procedural


def world(shape=(1.6, 2.5)):
    """Every prompt has a rate of its own, drawn from a beta distribution; counts are binomial."""

    def rate(prompt):
        return np.random.default_rng(stable_seed("rate", prompt.id)).beta(*shape)

    def count(prompts, size, sampling):
        return [
            int(np.random.default_rng(stable_seed(sampling, size, p.id)).binomial(size, rate(p)))
            for p in prompts
        ]

    return rate, count


def test_the_beta_distribution_is_found_though_sampling_stopped_early():
    _, count = world()
    prompts = procedural.dataset("pretrain", 900)
    found = []
    for prompt in prompts:
        total = Counted(0, 0)
        for number, size in enumerate(ROUNDS):
            total = Counted(total.correct + count([prompt], size, str(number))[0], total.sampled + size)
            if not total.is_rare:
                break
        found.append(total)
    a, b = fit_beta(found)
    assert a / (a + b) == pytest.approx(1.6 / 4.1, abs=0.03)
    assert a == pytest.approx(1.6, rel=0.2)
    rates = dict(zip(found, expected_rates(found), strict=True))
    assert rates[Counted(4, 4)] == pytest.approx((a + 4) / (a + b + 4))
    assert max(rates, key=rates.get).correct == 4


@settings(max_examples=40, deadline=None)
@given(
    rates=st.lists(st.floats(0.0, 1.0), min_size=20, max_size=60),
    target=st.floats(0.02, 0.6),
    size=st.integers(1, 20),
    seed=st.integers(0, 9),
)
def test_a_choice_has_its_size_and_each_prompt_once(rates, target, size, seed):
    chosen = choose(np.array(rates), target, size, np.random.default_rng(seed))
    assert chosen == sorted(set(chosen))
    assert len(chosen) == size


def test_a_choice_has_the_rate_that_was_asked_for_and_keeps_a_spread():
    rates = np.linspace(0.01, 0.9, 2000)
    for target in (0.05, 0.2, 0.4):
        found = rates[choose(rates, target, 100, np.random.default_rng(0))]
        assert found.mean() == pytest.approx(target, rel=0.1)
        assert found.std() > 0.4 * target
    rarest = choose(rates, 0.001, 50, np.random.default_rng(0))
    assert max(rarest) < 100, "rarer than there are: about the rarest there are"


def test_informative_groups_by_hand():
    """Solved 1 of 2: the only pair is mixed. Solved 2 of 4: 4 of 6 pairs are mixed."""
    assert informative_share([1], 2, 2) == 1
    assert informative_share([2, 0], 4, 2) == pytest.approx((4 / 6 + 0) / 2)


@pytest.fixture
def made(tmp_path):
    rate, count = world()
    plan = SetPlan(candidates={40: 40, 10: 100}, prompts=10, new_prompts=5)
    return plan, tmp_path, rate, count, dict(make_sets(plan, tmp_path, count))


def test_sets_are_described_by_a_sampling_that_did_not_choose_them(made):
    plan, folder, rate, _, found = made
    assert list(found) == ["tiny-hard-40", "tiny-hard-40-new", "tiny-hard-10", "tiny-hard-10-new"]
    prompts = {p.id: p for p in procedural.dataset("train", 100)}
    rows = [json.loads(line) for line in (folder / "tiny-hard-10.jsonl").read_text().splitlines()]
    true = np.mean([rate(prompts[row["id"]]) for row in rows])
    assert found["tiny-hard-10"]["success_rate"] == pytest.approx(true, abs=0.06)
    assert found["tiny-hard-10"]["success_rate"] < found["tiny-hard-40"]["success_rate"] / 2
    assert sum(found["tiny-hard-10"][f"solved_of_{SECOND}"]) == plan.prompts
    assert {row["id"].split("/")[1] for row in rows} == {"train"}
    assert found["tiny-hard-10-new"]["split"] == "validation"


def test_a_set_is_read_with_the_pixels_of_its_prompts(made):
    _, folder, *_ = made
    data = load_set(str(folder / "tiny-hard-10.jsonl"), DataConfig())
    assert len(data.prompts) == 10
    prompts = {p.id: p for p in procedural.dataset("train", 100)}
    for read in data.prompts[:3]:
        original = prompts[read.id.removeprefix("tiny-hard-10/train/")]
        assert read.images[0].open().convert("RGB").tobytes() == original.images[0].open().tobytes()
        assert (read.question, read.answer) == (original.question, original.answer)


def test_making_sets_again_samples_nothing_and_gives_the_same(made):
    plan, folder, _, count, found = made
    asked = []

    def noted(prompts, size, sampling):
        asked.append(sampling)
        return count(prompts, size, sampling)

    assert dict(make_sets(plan, folder, noted)) == found
    assert asked == []
    (folder / "tiny-hard-train-counts.jsonl").unlink()
    assert dict(make_sets(plan, folder, noted)) == found
    assert asked


def test_recorded_sets_are_written_from_their_ids(made, tmp_path):
    """Whatever the processor: rounding decides what is sampled, and so which prompts a sampling would choose."""
    plan, folder, _, _, found = made

    def never(prompts, size, sampling):
        pytest.fail("nothing needs to be sampled")

    again = tmp_path / "again"
    assert dict(make_sets(plan, again, never, found)) == found
    for name in found:
        assert (again / f"{name}.jsonl").read_text() == (folder / f"{name}.jsonl").read_text()
    check_sets(again, found)
    other = {**found, "tiny-hard-40": {**found["tiny-hard-40"], "digest": "0"}}
    with pytest.raises(UserError, match="tiny-hard-40 has other images or questions here"):
        dict(make_sets(plan, again, never, other))


def test_only_rare_prompts_are_sampled_on(tmp_path):
    _, count = world()
    prompts = procedural.dataset("train", 40)
    counts = Counts(tmp_path / "counts.jsonl", count).screened(prompts)
    for one in counts:
        assert one.sampled == sum(ROUNDS) or not one.is_rare
    assert len({one.sampled for one in counts}) > 2


def test_another_set_is_refused(made):
    _, folder, _, _, found = made
    check_sets(folder, found)
    path = folder / "tiny-hard-40.jsonl"
    path.write_text(path.read_text().replace('"answer": "', '"answer": "1', 1))
    with pytest.raises(UserError, match="is not the set that was recorded"):
        check_sets(folder, found)
    path.unlink()
    with pytest.raises(UserError, match="is missing: make it by"):
        check_sets(folder, found)
