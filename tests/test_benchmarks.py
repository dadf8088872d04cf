"""What the benchmarks rest on: turns in order, the same work for everybody, arithmetic that is right."""

import json
import sys

import pytest

from benchmarks import launches, overhead, scaling
from benchmarks.cases import parity
from benchmarks.turns import Contender, middle, play, ratio
from benchmarks.world import Work, make_trainer, write_for_peer

TOY = """
import time
from benchmarks.turns import serve
print("noise on stdout does not disturb the turns")
count = 0
def work():
    global count
    count += 1
    print("more noise")
    return {"count": count}
serve(work)
"""


def test_contenders_take_turns_and_warm_ups_do_not_count():
    pair = [Contender(name, [sys.executable, "-c", TOY], threads=1) for name in ("a", "b")]
    turns = play(pair, rounds=3, warmups=1)
    assert {name: [turn["count"] for turn in found] for name, found in turns.items()} == {
        "a": [2, 3, 4],
        "b": [2, 3, 4],
    }
    assert all(turn["seconds"] >= 0 and turn["cpu_seconds"] >= 0 for turn in turns["a"])


def test_a_contender_that_dies_is_named():
    with pytest.raises(SystemExit, match="broken ended with code 3"):
        Contender("broken", [sys.executable, "-c", "raise SystemExit(3)"], threads=1)


def test_ratios_are_of_turns_of_one_round():
    turns = {"slow": [{"seconds": s} for s in (4, 9, 8)], "fast": [{"seconds": s} for s in (2, 3, 8)]}
    assert ratio(turns, "slow", "fast") == "2.00x (1.00-3.00)"
    assert middle(turns["slow"], "seconds") == 8


def test_overhead_is_of_trained_groups_not_of_steps():
    base = [{"seconds": 10.0, "groups": 10}] * 3
    other = [{"seconds": 9.6, "groups": 8}] * 3
    assert overhead._overhead(base, other, "seconds").startswith("+20.0%")


def test_the_exponent_of_a_power_is_its_power():
    rows = {n: {"seconds": 3.0 * n**1.7} for n in (1, 2, 4, 8)}
    assert scaling.exponent(rows, "seconds") == pytest.approx(1.7)


@pytest.mark.parametrize("case", ["fixed", "natural"])
def test_the_shared_work_replays_with_anchors_from_the_first_step(case):
    trainer = make_trainer("pivot", case, "data.size=12", work=Work(prompts=4, responses=4))
    assert len(trainer.sources.buffer) > 4, "it has seen the whole set, not one step's prompts"
    outcome = trainer.step()
    trainer.judge.close()
    replayed = [group for group in outcome.selection.kept if group.replayed]
    assert replayed
    assert all(group.anchor is not None for group in replayed)
    if case == "fixed":
        assert {len(r) for group in outcome.selection.sampled for r in group.responses} == {48}


def test_the_peer_gets_the_same_prompts_and_images(tmp_path):
    work = json.loads(write_for_peer(tmp_path).read_text())
    assert len(work["rows"]) == 64
    assert all("<image>" not in row["user"] and "\\boxed" in row["user"] for row in work["rows"])
    assert all((tmp_path / f"{i}.png").is_file() for i in range(64))


def test_the_reward_of_the_benchmarks_reads_both_forms_of_completions():
    assert parity(["ab", "a"]) == parity([[{"content": "ab"}], [{"content": "a"}]]) == [1.0, 1.0]
    assert parity(["aa"]) == [0.0]


def test_a_larger_image_is_more_work():
    """The processor's limit must not scale it down again."""
    sizes = {}
    for side in (84, 168):
        trainer = make_trainer("dapo", "fixed", work=Work(prompts=1, responses=2, image_side=side))
        prompt = trainer.engine.prepare(next(iter(trainer.sources.prompts.values())))
        sizes[side] = sum(image.grid[1] * image.grid[2] for image in prompt.images)
    assert sizes[168] == 4 * sizes[84]


def test_a_decoded_token_makes_the_host_wait_once_in_eight():
    kernels, syncs = launches.per_token(layers=2)
    assert syncs == 1 / 8
    assert 0 < kernels < 2 * 60 + 60
