"""Load, in short; `make soak` does it at length."""

from fault_harness import repeatable_rows

from pivot.runs.run import train


def test_a_buffer_at_its_cap_stays_there(tmp_path, small_config):
    config = small_config(
        "ser", "train.steps=6", "buffer.max_prompts=3", "checkpoint.every=100", "rollout.max_tokens=64",
        "reward.function=fault_rewards:by_length",
    )  # fmt: skip
    train(config, tmp_path / "run", quiet=True)
    rows = repeatable_rows(tmp_path / "run")
    sizes = [row["buffer/size"] for row in rows]
    assert max(sizes) == 3
    assert sizes[-2:] == [3, 3]
    assert max(row["buffer/responses"] for row in rows) <= 3 * 4
