"""Reward functions with weights: what they are given, how their values become a reward, and who counts as correct."""

import asyncio
import time
from pathlib import Path

import pytest

from pivot import recipes
from pivot.config import apply_settings
from pivot.errors import UserError
from pivot.rewards.judge import FunctionJudge, RewardRules, metric_names, open_judge, overlong_penalty
from pivot.training.build import build_judge, describe_reward
from pivot.types import Prompt

RIGHT, WRONG, LONG = "<think>a</think> \\boxed{2}", "\\boxed{3}", "<think>a</think> so it is \\boxed{2}"


def prompts(picture, num: int = 3) -> list[Prompt]:
    return [
        Prompt(str(i), f"What is {i}?", "2", (picture(20 + i),), columns={"level": i}) for i in range(num)
    ]


def judged(picture, *functions, responses=(RIGHT, WRONG, LONG), **rules):
    judge = FunctionJudge(RewardRules(functions=functions, **rules))
    try:
        return judge.judge(prompts(picture, len(responses)), list(responses))
    finally:
        judge.close()


def brevity(completions):
    return [1 - len(text) / 100 for text in completions]


def test_the_reward_is_the_weighted_sum_and_success_goes_by_the_threshold(picture):
    rewards = judged(picture, "accuracy", brevity, weights=(1.0, 0.2))
    expected = [
        1 + 0.2 * (1 - len(RIGHT) / 100),
        0.2 * (1 - len(WRONG) / 100),
        1 + 0.2 * (1 - len(LONG) / 100),
    ]
    assert [r.accuracy for r in rewards] == pytest.approx(expected)
    assert [r.correct for r in rewards] == [True, False, True]
    assert [r.reason for r in rewards] == ["correct", "wrong", "correct"]
    assert rewards[0].parts == {"verifier_accuracy": 1.0, "brevity": pytest.approx(1 - len(RIGHT) / 100)}
    assert rewards[0].extracted == "2"


@pytest.mark.parametrize(
    ("threshold", "correct"), [(0.2, [True, True]), (0.5, [False, True]), (0.9, [False, False])]
)
def test_a_graded_reward_succeeds_above_the_threshold(picture, threshold, correct):
    rewards = judged(picture, lambda completions: [0.5, 0.6], responses=("a", "b"), threshold=threshold)
    assert [r.correct for r in rewards] == correct
    assert [r.accuracy for r in rewards] == [0.5, 0.6], "the advantage takes the value itself"


def test_format_is_part_of_the_reward_but_not_of_success(picture):
    def half(completions):
        return [0.45] * len(completions)

    rewards = judged(picture, half, "format", responses=(RIGHT, "plain"), weights=(1.0, 0.1))
    assert [r.accuracy for r in rewards] == pytest.approx([0.55, 0.45])
    assert [r.correct for r in rewards] == [False, False], "0.45 is not above 0.5, whatever the format adds"


def test_none_does_not_apply_and_a_row_without_any_reward_is_wrong(picture):
    def first(completions):
        return [1.0, None, None]

    def second(completions):
        return [None, 0.5, None]

    rewards = judged(picture, first, second, weights=(1.0, 2.0))
    assert [r.accuracy for r in rewards] == [1.0, 1.0, 0.0]
    assert [r.correct for r in rewards] == [True, True, False]
    assert rewards[2].reason == "not rewarded"
    assert rewards[1].parts == {"first": None, "second": 0.5}


def test_a_function_gets_the_columns_and_images_that_it_names(picture):
    seen = {}

    def asks(completions, level, images, answer):
        seen.update(level=level, sizes=[[i.size[0] for i in row] for row in images], answer=answer)
        return [0.0] * len(completions)

    judged(picture, asks)
    assert seen == {"level": [0, 1, 2], "sizes": [[20], [21], [22]], "answer": ["2", "2", "2"]}


def test_images_are_decoded_only_for_functions_that_ask(picture):
    class Unreadable:
        def open(self):
            raise AssertionError("nobody asked for this image")

    def takes_all(completions, **columns):
        assert "images" not in columns
        return [0.0]

    judge = FunctionJudge(RewardRules((takes_all,)))
    assert judge.judge([Prompt("a", "?", "1", (Unreadable(),))], ["x"])[0].accuracy == 0
    judge.close()


FILE = """
import asyncio

async def waits(completions, images, **columns):
    await asyncio.sleep(0)
    return [images[0][0].size[0] / 100, None]

def twice(completions):
    return [2.0, 2.0]
"""


def test_functions_of_a_file_run_in_their_processes_async_and_with_images(picture, tmp_path: Path):
    (tmp_path / "rw.py").write_text(FILE)
    file = tmp_path / "rw.py"
    rewards = judged(picture, f"{file}:waits", f"{file}:twice", responses=("a", "b"), weights=(1.0, 0.1))
    assert [r.accuracy for r in rewards] == pytest.approx([0.4, 0.2])
    assert rewards[0].parts == {"waits": 0.2, "twice": 2.0}


def test_an_async_function_of_this_process(picture):
    loops = set()

    async def waits(completions):
        loops.add(asyncio.get_running_loop())
        return [0.25] * len(completions)

    judge = FunctionJudge(RewardRules((waits,)))
    for _ in range(2):
        assert [r.accuracy for r in judge.judge(prompts(picture, 1), ["x"])] == [0.25]
    judge.close()
    assert len(loops) == 1, "a client may be kept between calls"


def test_a_function_of_this_process_has_the_same_time_limit(picture):
    def sleeps(completions):
        time.sleep(5 if completions == ["slow"] else 0)
        return [1.0]

    judge = FunctionJudge(RewardRules((sleeps,), timeout=0.3))
    begin = time.monotonic()
    with pytest.raises(UserError, match=r"the reward function sleeps did not return within 0.3 s"):
        judge.judge(prompts(picture, 1), ["slow"])
    assert time.monotonic() - begin < 4
    assert judge.judge(prompts(picture, 1), ["fast"])[0].accuracy == 1, (
        "a late reply is not taken for this one"
    )
    judge.close()


def test_a_function_of_this_process_that_raises_is_named(picture):
    def broken(completions):
        raise KeyError("x")

    with pytest.raises(
        UserError, match=r"the reward function broken raised KeyError: 'x' \(test_judge.py, line \d+\)"
    ):
        judged(picture, broken)


def test_names_in_the_metrics_are_unique():
    assert metric_names(["rw.py:accuracy", "a/rw.py:brevity", "pack.mod:f", "other:f", "accuracy", brevity]) == [
        "rw.accuracy", "rw.brevity", "mod.f", "other.f", "verifier_accuracy", "memory.brevity"
    ]  # fmt: skip
    assert metric_names(["a/rw.py:f", "b/rw.py:f", "rw.py:f"]) == ["rw.f", "rw.f_2", "rw.f_3"]
    assert metric_names([lambda completions: []]) == ["lambda"]


def configured(*settings: str):
    return apply_settings(recipes.get("tiny"), settings)


def test_a_notebooks_function_takes_its_place_in_the_configuration(picture):
    config = configured("reward.functions=[accuracy, memory:brevity]", "reward.weights=[0, 3]")
    judge = build_judge(config, brevity)
    (reward,) = judge.judge(prompts(picture, 1), [RIGHT])
    judge.close()
    assert reward.accuracy == pytest.approx(3 - 3 * len(RIGHT) / 100)
    with pytest.raises(
        UserError, match="rewarded by the Python function brevity, which its folder does not hold"
    ):
        build_judge(config)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ([], "exact match (pivot); format advantage 0.1 x format"),
        (["reward.format=false"], "exact match (pivot); no format advantage"),
        (["reward.functions=[accuracy]"], "1 x accuracy; correct above 0.5; format advantage 0.1 x format"),
        (
            ["reward.functions=[accuracy, m:f]", "reward.weights=[1, 0.2]", "reward.threshold=0.3"],
            "1 x accuracy + 0.2 x m:f; correct above 0.3; no format advantage (reward.format=true adds it)",
        ),
        (
            ["reward.function=m:f", "reward.format=true"],
            "1 x m:f; correct above 0.5; format advantage 0.1 x format",
        ),
        (
            ["reward.overlong_cache=8", "reward.mask_truncated=true"],
            "exact match (pivot); format advantage 0.1 x format; penalty over the last 8 of 96 tokens; truncated "
            "responses are left out of the loss",
        ),
    ],
)
def test_the_beginning_of_a_run_says_what_is_rewarded(settings, sentence):
    assert describe_reward(configured(*settings)) == sentence


def test_the_prompts_answer_form_is_graded(picture):
    judge = open_judge(RewardRules(answer="tag", think=False))
    rewards = judge.judge(prompts(picture, 2), ["<answer>2</answer>", RIGHT])
    judge.close()
    assert [(r.correct, r.format, r.reason) for r in rewards] == [
        (True, 1.0, "correct"),
        (False, 0.0, "no answer"),
    ]


def test_the_overlong_penalty_by_hand():
    lengths = [0, 1536, 1537, 1792, 2047, 2048]
    found = [overlong_penalty(length, longest=2048, cache=512) for length in lengths]
    assert found == [0, 0, -1 / 512, -0.5, -511 / 512, -1]
    assert overlong_penalty(5, longest=10, cache=10) == -0.5


def test_the_overlong_penalty_as_dapo_writes_it():
    for length in range(1, 41):
        if length <= 40 - 16:
            expected = 0.0
        else:
            expected = ((40 - 16) - length) / 16
        assert overlong_penalty(length, longest=40, cache=16) == expected
