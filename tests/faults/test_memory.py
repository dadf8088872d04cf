"""Out of memory: half the token budget, the same numbers, and a word about it."""

import json

import pytest
import torch
from fault_harness import newest_checkpoint, repeatable_rows

from pivot.errors import UserError
from pivot.models.memory import is_out_of_memory, within_memory
from pivot.models.policy import Policy
from pivot.runs.run import resume, train
from pivot.sampling import native

SETTINGS = ("method.dynamic_sampling=false", "train.prompts_per_step=4", "train.minibatch_prompts=4",
            "train.steps=2")  # fmt: skip
TOO_MUCH = 2**50
"""Bytes: more than any address space holds, so that the allocator's own refusal is seen, at once."""


def run_out() -> None:
    torch.empty(TOO_MUCH, dtype=torch.uint8)


def tokens(units) -> int:
    return sum(len(unit.prompt) + sum(map(len, unit.responses)) for unit in units)


@pytest.fixture
def small_machine(monkeypatch):
    """A machine on which a forward pass over more than `limit` tokens runs out of memory, for real."""
    real = Policy.score

    def install(limit: int, *, with_gradient: bool) -> list[int]:
        seen: list[int] = []

        def score(self, units, *args, **kwargs):
            if torch.is_grad_enabled() == with_gradient:
                seen.append(tokens(units))
                if seen[-1] > limit:
                    run_out()
            return real(self, units, *args, **kwargs)

        monkeypatch.setattr(Policy, "score", score)
        return seen

    return install


def test_the_allocators_own_words_are_known():
    with pytest.raises(RuntimeError) as cpu:
        run_out()
    assert is_out_of_memory(cpu.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
    assert not is_out_of_memory(ValueError("out of memory"))


@pytest.fixture(scope="module")
def large(small_config, tmp_path_factory):
    """The run of a machine with memory enough."""
    out = tmp_path_factory.mktemp("large") / "run"
    train(small_config("pivot", *SETTINGS), out, quiet=True)
    return out


@pytest.mark.parametrize("with_gradient", [True, False], ids=["update", "scoring"])
def test_the_budget_is_halved_and_the_run_goes_on(
    tmp_path, small_config, small_machine, large, capsys, with_gradient
):
    seen = small_machine(450, with_gradient=with_gradient)
    assert train(small_config("pivot", *SETTINGS), tmp_path / "small").finished
    assert max(seen) > 450, "it did run out"
    rows = [json.loads(line) for line in (tmp_path / "small" / "metrics.jsonl").read_text().splitlines()]
    budget = rows[0]["memory/micro_batch_tokens"]
    assert budget < 450
    assert rows[1]["memory/micro_batch_tokens"] == budget, "and stays there"
    assert f"step 1: out of memory; micro_batch_tokens is {budget} from now on" in capsys.readouterr().out
    usual, small = repeatable_rows(large)[0], repeatable_rows(tmp_path / "small")[0]
    for name in ("loss/total", "optim/grad_norm", "reward/accuracy", "visual/support_mean"):
        assert small[name] == pytest.approx(usual[name], rel=1e-3, abs=1e-5), name


def test_a_resumed_run_keeps_the_lower_budget(tmp_path, small_config, small_machine):
    small_machine(450, with_gradient=True)
    train(small_config("pivot", *SETTINGS), tmp_path / "run", quiet=True)
    state = json.loads((newest_checkpoint(tmp_path / "run") / "state.json").read_text())
    assert state["budgets"]["micro_batch_tokens"] < 450
    (newest_checkpoint(tmp_path / "run") / "state.json").unlink()  # so that it goes on from step 1
    resume(tmp_path / "run", quiet=True)
    again = json.loads((tmp_path / "run" / "checkpoints" / "step-2" / "state.json").read_text())
    assert again["budgets"] == state["budgets"]


def test_a_rollout_that_runs_out_decodes_fewer_prompts_at_once(tmp_path, small_config, monkeypatch, capsys):
    real, batches = native.sample_responses, []

    def sample(policy, prompts, num_samples, sampling, **kwargs):
        batches.append(kwargs["batch_tokens"])
        if kwargs["batch_tokens"] > 2000:
            run_out()
        return real(policy, prompts, num_samples, sampling, **kwargs)

    monkeypatch.setattr(native, "sample_responses", sample)
    assert train(small_config("dapo", *SETTINGS), tmp_path / "run").finished
    assert batches[0] == 65536
    assert batches[-1] <= 2000
    assert f"batch_tokens is {batches[-1]} from now on" in capsys.readouterr().out


def test_it_can_be_switched_off(tmp_path, small_config, small_machine):
    seen = small_machine(450, with_gradient=True)
    with pytest.raises(UserError, match=r"out of memory, and train.micro_batch_tokens was not .* lowered"):
        train(small_config("pivot", *SETTINGS, "train.halve_on_oom=false"), tmp_path / "run", quiet=True)
    assert len(seen) == 1


def test_a_single_response_that_does_not_fit_ends_the_run_with_one_sentence(
    tmp_path, small_config, small_machine
):
    seen = small_machine(10, with_gradient=True)
    with pytest.raises(UserError, match=r"out of memory, .*tried to allocate"):
        train(small_config("pivot", *SETTINGS), tmp_path / "run", quiet=True)
    assert len(seen) < 12, "it gives up when there is nothing left to divide"


def test_what_the_failed_attempt_held_is_given_back():
    import gc
    import weakref

    held = []

    def work():
        block = torch.zeros(1000)
        if not held:
            held.append(weakref.ref(block))
            raise MemoryError
        gc.collect()
        assert held[0]() is None, "the first attempt's tensors are gone before the second"
        return 7

    assert within_memory(work, lambda: True, "x") == 7


def test_another_error_is_not_taken_for_it():
    with pytest.raises(RuntimeError, match="shape mismatch"):
        within_memory(_broken, lambda: True, "x")


def _broken():
    raise RuntimeError("shape mismatch")
