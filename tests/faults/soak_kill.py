"""Soak: at least 25 kills with SIGKILL, at random moments and at random points, and every run ends bit-equal."""

import random
import time

from fault_harness import differences, repeatable_rows
from kill_points import POINTS
from soak_table import record

STEPS, KILLS, KILLS_A_RUN = 20, 25, 13
SETTINGS = (f"train.steps={STEPS}", "log.rollouts_per_step=1", "log.rollouts_every=1", "checkpoint.every=2",
            "train.prompts_per_step=2", "train.minibatch_prompts=1", "rollout.max_tokens=40", "data.size=24",
            "eval.every=5", "eval.samples=1")  # fmt: skip


def test_random_kills_change_nothing(server, small_config, tmp_path):
    moments, config = random.Random(20261116), small_config("pivot", *SETTINGS)
    begin = time.monotonic()
    assert server.train(config, tmp_path / "whole").code == 0
    seconds_a_step = (time.monotonic() - begin) / STEPS
    assert len(repeatable_rows(tmp_path / "whole")) == STEPS
    by_clock = by_point = runs = 0
    while by_clock + by_point < KILLS:
        runs += 1
        assert runs < 10, "the runs end before they are killed"
        run, kills, ended = tmp_path / f"run-{runs}", 0, None
        while ended is None or ended.was_killed:
            fault = {}
            if kills < KILLS_A_RUN and moments.random() < 0.3:
                fault = {"kill_point": moments.choice(list(POINTS))}
            elif kills < KILLS_A_RUN:
                fault = {"kill_after": moments.uniform(0.0, 6 * seconds_a_step)}
            begun = (run / "config.json").exists()
            ended = server.resume(run, **fault) if begun else server.train(config, run, **fault)
            kills += ended.was_killed
            by_point += ended.was_killed and "kill_point" in fault
            by_clock += ended.was_killed and "kill_after" in fault
        assert ended.code == 0, ended.said[-2000:]
        assert differences(run, tmp_path / "whole") == []
    record(
        "kills",
        f"{by_clock + by_point} with SIGKILL ({by_clock} at random moments, {by_point} at random points) in {runs} "
        f"runs of {STEPS} steps",
        "metrics, rollouts, weights, optimizer, buffer and state equal those of the run never killed, bit for bit",
    )
