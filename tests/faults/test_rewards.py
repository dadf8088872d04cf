"""Reward functions of a user's own: what goes wrong is named and bounded, and never swallowed."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fault_harness import repeatable_rows, wait_until

from pivot.errors import UserError
from pivot.jsonl import read_rows
from pivot.rewards.judge import FunctionJudge
from pivot.runs.run import train
from pivot.types import Prompt

PROMPTS = [Prompt(id=str(i), question=f"What is {i}?", answer=str(i), images=()) for i in range(3)]
TEXTS = ["a", "bb", "<think>x</think> \\boxed{2}"]


def judged(function: str, timeout: float = 60.0):
    judge = FunctionJudge(f"fault_rewards:{function}", timeout)
    try:
        return judge.judge(PROMPTS, TEXTS)
    finally:
        judge.close()


def living_members(session: int) -> list[int]:
    """Processes of a session that are not zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, _, _, owner = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:4]
        except (OSError, ValueError):
            continue  # it ended meanwhile
        if int(owner) == session and state != "Z":
            found.append(int(entry.name))
    return found


def test_values_arrive_and_the_format_is_the_verifiers():
    rewards = judged("by_length")
    assert [r.accuracy for r in rewards] == [1.0, 0.0, float(len(TEXTS[2]) % 2)]
    assert [r.format for r in rewards] == [0.0, 0.0, 1.0]
    assert [r.accuracy for r in judged("as_array")] == [0.25] * 3


def test_what_it_prints_or_reads_does_not_disturb(capfd):
    assert [r.accuracy for r in judged("talkative")] == [1.0] * 3
    assert "hello from the reward function" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("raises", r"fault_rewards:raises raised KeyError: 'no such column' \(fault_rewards.py, line \d+\)"),
        ("exits", r"fault_rewards:exits raised SystemExit: that was it"),
        ("vanishes", r"fault_rewards:vanishes ended its process 2 times \(exit code 7\)"),
        ("killed", r"fault_rewards:killed ended its process 2 times \(signal SIGKILL\)"),
        ("too_few", r"fault_rewards:too_few returned 1 values for 3 responses"),
        ("too_many", r"fault_rewards:too_many returned 4 values for 3 responses"),
        ("nothing", r"fault_rewards:nothing returned NoneType, expected a list of numbers"),
        ("words", r"fault_rewards:words returned list, expected a list of numbers"),
    ],
)
def test_what_goes_wrong_is_named(function, sentence):
    with pytest.raises(UserError, match=sentence):
        judged(function)


@pytest.mark.parametrize("function", ["sleeps", "computes_forever", "ignores_signals", "starts_others"])
def test_one_that_never_returns_is_given_up_and_leaves_no_process(function):
    judge = FunctionJudge(f"fault_rewards:{function}", timeout=0.5)
    worker = judge.process.pid
    begin = time.monotonic()
    with pytest.raises(UserError, match=rf"fault_rewards:{function} did not return within 0.5 s"):
        judge.judge(PROMPTS, TEXTS)
    assert time.monotonic() - begin < 30, "half a second, and a margin for a busy machine"
    wait_until(lambda: not living_members(worker), 30, "the end of the function's processes")
    judge.close()


def test_a_worker_that_is_killed_between_calls_comes_back():
    judge = FunctionJudge("fault_rewards:by_length", 60.0)
    os.kill(judge.process.pid, 9)
    assert [r.accuracy for r in judge.judge(PROMPTS, TEXTS)][:2] == [1.0, 0.0]
    judge.close()


def test_a_worker_that_is_killed_while_it_starts_is_started_again(monkeypatch):
    started, popen = [], subprocess.Popen

    def start(*args, **kwargs):
        started.append(popen(*args, **kwargs))
        if len(started) == 1:
            started[0].kill()
        return started[-1]

    monkeypatch.setattr("pivot.rewards.process.subprocess.Popen", start)
    assert [r.accuracy for r in judged("by_length")][:2] == [1.0, 0.0]
    assert len(started) == 2


def test_a_worker_ends_with_a_trainer_that_is_killed():
    """Even while the function computes and never looks at its input."""
    code = (
        "import sys, threading; sys.path.insert(0, sys.argv[1])\n"
        "from pivot.rewards.process import RewardProcess\n"
        "process = RewardProcess('fault_rewards:sleeps', 3600)\n"
        "print(process.pid, flush=True)\n"
        "process.call({'completions': ['x']})"
    )
    trainer = subprocess.Popen(
        [sys.executable, "-c", code, str(Path(__file__).parent)], stdout=subprocess.PIPE, text=True
    )
    worker = int(trainer.stdout.readline())
    trainer.kill()
    trainer.communicate()
    wait_until(lambda: not living_members(worker), 30, "the worker's end")
    assert living_members(worker) == []


def test_rewards_that_are_not_finite_stop_a_run_after_some_steps(tmp_path, small_config):
    config = small_config(
        "dapo", "reward.function=fault_rewards:not_a_number", "train.steps=9", "train.max_bad_updates=2"
    )
    with pytest.raises(
        UserError, match=r"2 updates in a row were not finite, the last because of its reward"
    ):
        train(config, tmp_path / "run", quiet=True)
    assert [row["optim/skipped_updates"] for row in repeatable_rows(tmp_path / "run")] == [1, 1]


def test_a_run_whose_every_reward_is_not_finite_does_not_end_as_finished(tmp_path, small_config):
    config = small_config("dapo", "reward.function=fault_rewards:not_a_number", "train.steps=2")
    with pytest.raises(UserError, match=r"trained nothing: all of its 2 updates were skipped"):
        train(config, tmp_path / "run", quiet=True)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "failed"


def test_one_infinite_reward_costs_one_step_and_its_prompt_is_named(tmp_path, small_config, capsys):
    # Without a filter and without replay there is one round, so one call, a step.
    config = small_config(
        "dapo",
        "reward.function=fault_rewards:infinite_once",
        "rollout.max_tokens=24",
        "method.dynamic_sampling=false",
    )
    assert train(config, tmp_path / "run").finished
    rows = repeatable_rows(tmp_path / "run")
    assert [row["optim/skipped_updates"] for row in rows] == [0, 1, 0]
    assert rows[1]["optim/updates"] == 0
    assert rows[1]["rollout/groups"] == 2, "its group counts for nothing"
    (dumped,) = read_rows(tmp_path / "run" / "nonfinite.jsonl")
    assert (dumped["step"], dumped["what"], len(dumped["prompts"])) == (2, "reward", 1)
    assert f"reward is not finite, update skipped; prompts: {dumped['prompts'][0]}" in capsys.readouterr().out
