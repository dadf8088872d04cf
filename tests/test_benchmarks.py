"""What the benchmarks rest on: turns in order, the same work for everybody, arithmetic that is right."""

import json
import sys

import pytest

from benchmarks import clusters, launches, overhead, phases, scaling
from benchmarks.cases import Meter, every_other
from benchmarks.slice import slice_settings, write_slice
from benchmarks.turns import Contender, middle, play, play_apart, ratio
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


def test_contenders_that_play_apart_begin_again_for_each_turn():
    pair = [Contender(name, [sys.executable, "-c", TOY], threads=1, begin=False) for name in ("a", "b")]
    turns = play_apart(pair, rounds=2, warmups=1)
    assert {name: [turn["count"] for turn in found] for name, found in turns.items()} == {
        "a": [2, 2],
        "b": [2, 2],
    }


def test_a_slice_of_the_real_model_trains(tmp_path, monkeypatch):
    """With its layers, vocabulary and tokenizer's template; its width is that of the tiny model here."""
    from pivot.models import qwen_vl

    sizes = qwen_vl.published_config("3B")
    small = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    for name, value in small.items():
        setattr(sizes.text_config, name, value)
    sizes.text_config.rope_parameters["mrope_section"] = [2, 3, 3]
    for name, value in {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "out_hidden_size": 64,
    }.items():
        setattr(sizes.vision_config, name, value)
    monkeypatch.setattr(qwen_vl, "published_config", lambda size: sizes)
    write_slice(tmp_path / "model")
    settings = [*slice_settings(tmp_path / "model", "tiny"), "data.size=4", "model.max_pixels=12544"]
    settings += ["model.min_pixels=3136"]
    trainer = make_trainer("dapo", "slice", *settings, work=Work(prompts=4, responses=4, tokens=4))
    assert trainer.engine.policy.model.config.text_config.vocab_size == 151_936
    meter = Meter(trainer.engine.policy.model)
    outcome = trainer.step()
    assert outcome.update is not None
    assert all(len(r) == 4 for group in outcome.groups for r in group.responses)
    groups = outcome.selection.sampled
    prompt_tokens = sum(len(group.prepared) for group in outcome.groups)
    responses = sum(len(r) for group in outcome.groups for r in group.responses)
    decoded = sum(len(r) - 1 for group in groups for r in group.responses)
    prefilled = sum(len(trainer.engine.prepare(group.prompt)) for group in groups)
    # Once in the rollout, twice in the update: layers are recomputed. Siblings may share first tokens.
    most = prefilled + decoded + 2 * (prompt_tokens + responses)
    found = meter.read()
    assert most - 2 * responses <= found["computed_tokens"] <= 1.1 * most
    assert 0.1 < found["peak_gib"] < 24
    assert meter.read()["computed_tokens"] == 0


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


def test_half_of_each_group_is_right_for_everybody():
    texts, messages = ["a", "b", "c"], [[{"content": text}] for text in "abc"]
    assert every_other(texts) == every_other(messages, prompts=["?"] * 3) == [0.0, 1.0, 0.0]


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


def test_the_arithmetic_of_clusters():
    """Hand-computed for a round model: what is divided by the ranks, what is not, and what crosses the network."""
    from pivot import recipes
    from pivot.doctor.speed import named_gpu
    from pivot.models.architecture import find_architecture

    config, gpu = recipes.get("geo3k-7b"), named_gpu("H100-80GB")
    model = find_architecture(config.model.path)
    node, many, idle = (clusters.step_on(gpus, False, config, model, gpu) for gpus in (8, 64, 512))
    assert many.compute == pytest.approx(node.compute / 8)
    assert (node.idle_ranks, many.idle_ranks, idle.idle_ranks) == (0, 0, 512 - 128)
    assert idle.compute == pytest.approx(many.compute / 2), "a prompt stays on one rank"
    assert many.sampling == many.longest > node.sampling / 8
    assert node.driver == many.driver == pytest.approx(11.3)
    grown = clusters.step_on(64, True, config, model, gpu)
    assert (grown.prompts, grown.driver) == (8 * 384, pytest.approx(8 * 11.3))
    assert (grown.compute, grown.sampling) == (pytest.approx(node.compute), pytest.approx(node.sampling))
    # 3 minibatches of 2 prompts per rank: one micro-batch each. Two gathers of bfloat16 weights and a float32 reduction
    # in the update, and one gather for each of three passes that score.
    assert many.gathered == pytest.approx(3 * (2 + 2 + 4 + 3 * 2) * model.parameters * 63 / 64)
    assert many.exchange == pytest.approx(many.gathered / 50e9)
    assert node.exchange == pytest.approx(node.gathered / 450e9)
    assert many.total == many.sampling + many.compute + many.weights + many.driver


def test_the_arithmetic_of_phases():
    """DAPO scores once because of vLLM, VPPO also the corrupted images, PIVOT also its candidates."""
    from pivot import recipes

    slow, fast = (phases.phases(recipes.get("geo3k-3b"), gpu) for gpu in phases.GPUS)
    for found in (slow, fast):
        dapo, vppo, pivot = (found[name] for name in phases.METHODS)
        assert vppo.scoring == pytest.approx(2 * dapo.scoring)
        assert pivot.scoring == pytest.approx(3 * dapo.scoring)
        assert dapo.sampling == pivot.sampling
        assert dapo.update == pivot.update
    # Peak rates of an H100 and an A100: 989 and 312 TFLOP/s.
    assert slow["dapo"].update == pytest.approx(fast["dapo"].update * 989 / 312)
