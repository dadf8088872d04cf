"""The path that GPUs take, on CPUs: LoRA on two ranks through verl's own loop, load balancer, client and weight
transfer, to servers that answer with vLLM's signature (`vllm_standin.py`)."""

import json
from pathlib import Path

import pytest

from pivot.models.loading import load_policy

pytest.importorskip("verl")
HERE = Path(__file__).parent
STEPS = 6
SAMPLES = 6


@pytest.fixture(scope="module")
def served(start, tmp_path_factory):
    """The run's folder and what was asked of the servers, in order."""
    log = tmp_path_factory.mktemp("servers") / "log.jsonl"
    environment = {
        "PYTHONPATH": str(HERE),
        "VERL_USE_EXTERNAL_MODULES": "vllm_standin",
        "STANDIN_LOG": str(log),
        "PYTHONHASHSEED": "0",
    }
    settings = [f"train.steps={STEPS}", "checkpoint.every=3", "model.lora_rank=4", "train.lr=4e-4"]
    run = start("served", "--gpus", "2", "--rollout", "vllm", settings=settings, environment=environment)
    code = run.finish()
    assert code == 0, run.said()
    return run.out, [json.loads(line) for line in log.read_text().splitlines()]


def of(log, what, replica=None):
    return [row for row in log if row["what"] == what and replica in (None, row["replica"])]


def test_a_run_finishes_and_learns_from_every_step(served):
    rows = [json.loads(line) for line in (served[0] / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert all(row["optim/updates"] >= 1 and row["optim/grad_norm"] > 0 for row in rows)
    assert all(row["optim/skipped_updates"] == 0 for row in rows)
    # Old log-probs come from a pass of the ranks, so that the first update's ratios are 1.
    assert all(row["optim/ratio_mean"] == pytest.approx(1.0, abs=0.05) for row in rows)


def test_requests_have_no_seed_and_no_log_probs_and_bring_their_images(served):
    requests = of(served[1], "generate")
    assert len(requests) >= STEPS * 8 * SAMPLES
    assert not any(row["seeded"] or row["logprobs"] for row in requests)
    assert all(row["images"] for row in requests)
    assert len({row["request"] for row in requests}) == len(requests), "vLLM sees an id once"


def test_the_samples_of_a_prompt_go_to_one_replica(served):
    by_prompt: dict[tuple, list] = {}
    version = 0
    for row in served[1]:
        version += row["what"] == "weights" and row["replica"] == 0
        if row["what"] == "generate":
            by_prompt.setdefault((version, row["prompt"], str(row["images"])), []).append(row["replica"])
    # Two prompts of the tiny set may be the same text with different pictures of one size: both replicas then.
    together = [len(set(replicas)) == 1 for replicas in by_prompt.values() if len(replicas) == SAMPLES]
    assert together
    assert all(together)
    assert {row["replica"] for row in of(served[1], "generate")} == {0, 1}


def test_servers_sleep_while_ranks_work_and_wake_with_new_weights(served):
    for replica in (0, 1):
        order = [row["what"] for row in served[1] if row["replica"] == replica]
        between = "".join(
            {"wake_up": "w", "weights": "W", "sleep": "s", "generate": "g"}.get(w, "") for w in order
        )
        phases = [phase for phase in between.split("s") if phase]
        assert len(phases) >= STEPS
        assert all(phase.startswith("wWw") for phase in phases if "g" in phase), between


def test_the_servers_receive_merged_weights_under_the_models_names(served):
    run, log = served
    before = load_policy("tiny").model.state_dict()
    saved = load_policy(str(run / "checkpoints" / "step-3" / "model")).model.state_dict()
    updates = of(log, "weights", 0)
    assert all(update["sums"].keys() == before.keys() for update in updates)
    changed = {name for name in before if not before[name].equal(saved[name])}
    assert changed
    assert all(name.endswith("_proj.weight") and ".language_model." in name for name in changed), changed
    # What the servers sampled with after step 3 is what was saved then: adapters and all.
    sums = {name: float(weight.double().sum()) for name, weight in saved.items()}
    assert any(
        all(update["sums"][name] == pytest.approx(value, abs=1e-4) for name, value in sums.items())
        for update in updates
    )
    assert updates[0]["sums"] != updates[-1]["sums"]
