"""Soak: more than 300 steps with flat memory, flat step time, and a buffer that stays at its cap."""

import json
from statistics import quantiles

import numpy as np
from soak_table import record

STEPS, SETTLED, CAP = 320, 100, 8
"""The first steps fill caches: the encoded prompts, the buffer, the allocator's arenas."""
MEGABYTES_A_HUNDRED_STEPS = 1.0


def test_three_hundred_steps_stay_flat(server, small_config, tmp_path):
    config = small_config(
        "pivot", f"train.steps={STEPS}", f"buffer.max_prompts={CAP}", "data.size=48", "checkpoint.every=20",
        "train.prompts_per_step=2", "train.minibatch_prompts=1", "log.rollouts_per_step=1", "log.rollouts_every=10",
    )  # fmt: skip
    ended = server.train(config, tmp_path / "run", patience=3600.0)
    assert ended.code == 0, ended.said[-2000:]
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == STEPS
    settled = rows[SETTLED:]
    megabytes = np.array([row["memory/rss_gb"] for row in settled]) * 1e3
    slope = 100 * np.polyfit(np.arange(len(settled)), megabytes, 1)[0]
    # The fastest tenth of each half: what neighbours on the machine do hits the slow ones.
    halves = settled[: len(settled) // 2], settled[len(settled) // 2 :]
    early, late = (
        quantiles([row["time/step"] / row["rollout/tokens"] for row in half], n=10)[0] for half in halves
    )
    sizes = [row["buffer/size"] for row in settled]
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    record(
        "load",
        f"{STEPS} steps, a buffer with a cap of {CAP} prompts",
        f"resident memory {megabytes[0]:.1f} MB at step {SETTLED + 1}, {megabytes[-1]:.1f} MB at step {STEPS}, slope "
        f"{slope:+.2f} MB per 100 steps; time per token of the second half {late / early:.2f} times that of the first; "
        f"buffer {min(sizes)} to {max(sizes)} prompts",
    )
    assert slope < MEGABYTES_A_HUNDRED_STEPS
    assert late / early < 1.5
    assert set(sizes) == {CAP}
    assert max(row["buffer/size"] for row in rows) == CAP
    assert len(kept) == 2
