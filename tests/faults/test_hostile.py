"""Hostile model output: the verifier answers, nothing hangs, grows or dies, and training goes on."""

import os
import signal
import time
from pathlib import Path

import pytest
from fault_harness import repeatable_rows
from hostile_responses import CODE, INJECTION, whole_responses

from pivot.rewards.judge import VerifierJudge
from pivot.rewards.verifier import Reason, Verifier
from pivot.runs.run import train
from pivot.sampling import native

LIMIT_SECONDS = 2.0
"""Of processor time in this process; the library's own share is bounded by the kernel (`seconds`)."""
WALL_SECONDS = 30.0
"""By the clock, on a machine that others keep busy as well."""


def resident_megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def test_more_than_five_hundred_hostile_responses_are_each_answered_in_time():
    texts = whole_responses()
    assert len(set(texts)) >= 500
    with Verifier(workers=1, seconds=0.1) as verifier:
        verifier.grade(r"\boxed{\sin 30^\circ}", "y")  # starts the library
        memory = resident_megabytes()
        for text in texts:
            wall, own = time.monotonic(), time.process_time()
            reward = verifier.grade(text, "7")
            assert time.process_time() - own < LIMIT_SECONDS, text[:80]
            assert time.monotonic() - wall < WALL_SECONDS, text[:80]
            assert reward.reason in set(Reason), text[:80]
            assert reward.accuracy == 0.0, f"7 is not what it says: {text[:80]}"
        assert resident_megabytes() - memory < 100
        assert len(verifier.pool.pids) == 1
        assert verifier.grade(r"\boxed{7}", "7").correct, "it still grades"
        assert verifier.grade(r"\boxed{\log_2 128}", "7").reason in (Reason.CORRECT, Reason.TIMED_OUT)
    assert not Path("/tmp/owned-by-a-response").exists()


def test_training_goes_on_over_hostile_responses_and_killed_graders(tmp_path, small_config, monkeypatch):
    real_sample, real_judge = native.sample_responses, VerifierJudge.judge
    texts = iter([f"<think>a</think> \\boxed{{{box}}}" for box in (*INJECTION, *CODE)])
    killed = []

    def hostile(*args, **kwargs):
        for index, responses in real_sample(*args, **kwargs):
            for response in responses[1:]:
                response.text = next(texts)
            yield index, responses

    def kill_the_graders(self, prompts, responses):
        self._verifier.grade(r"\boxed{\sin 30^\circ}", "y")
        for pid in self._verifier.pool.pids:
            os.killpg(pid, signal.SIGKILL)  # with its child
            killed.append(pid)
        return real_judge(self, prompts, responses)

    monkeypatch.setattr(native, "sample_responses", hostile)
    monkeypatch.setattr(VerifierJudge, "judge", kill_the_graders)
    config = small_config("pivot", "method.dynamic_sampling=false", "train.steps=2")
    assert train(config, tmp_path / "run", quiet=True).finished
    assert len(set(killed)) >= 2, "a new one each time"
    assert [row["optim/updates"] for row in repeatable_rows(tmp_path / "run")] == [2, 2]


def test_a_sampled_image_token_cannot_break_the_next_step(policy):
    """Vision tokens are banned from sampling, so that no response can ask for an image that is not there."""
    assert policy.family.image_token_id in policy.banned_ids


@pytest.mark.parametrize("box", ["5", "\\frac{10}{2}", "10/2"])
def test_the_judge_is_not_deaf(box):
    """The other side of the coin: what is right is still taken."""
    with Verifier(workers=1) as verifier:
        assert verifier.grade(f"<think>a</think> \\boxed{{{box}}}", "5").correct
