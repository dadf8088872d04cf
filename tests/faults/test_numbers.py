"""NaN and infinity: skipped, counted, named; after some in a row the run ends and its last checkpoint is good."""

import json
import math

import pytest
import torch
from fault_harness import newest_checkpoint, repeatable_rows
from safetensors.torch import load_file

from pivot.engines import local
from pivot.engines.optimizer import MasterAdamW
from pivot.errors import UserError
from pivot.jsonl import read_rows
from pivot.runs.checkpoint import CheckpointStore, find_damage
from pivot.runs.guard import ENOUGH, WINDOW, FormatWatch, SpikeWatch, spike_message
from pivot.runs.run import resume, train

EVERY_STEP_UPDATES = ("method.dynamic_sampling=false", "train.minibatch_prompts=3")
REAL_OBJECTIVE = local.objective


class Poison:
    """Stands before the objective of the given updates and makes their loss or gradient bad."""

    def __init__(self, calls, kind):
        self.calls, self.kind, self.count = set(calls), kind, 0

    def __call__(self, method, batch, totals):
        self.count += 1
        loss, values = REAL_OBJECTIVE(method, batch, totals)
        if self.count not in self.calls:
            return loss, values
        if self.kind == "loss":
            return loss * math.nan, values
        return loss + _InfiniteGradient.apply(batch.new_logprobs_BT).sum() * 0, values


class _InfiniteGradient(torch.autograd.Function):
    """A finite value with a gradient that is not, as an overflow in a backward pass leaves it."""

    @staticmethod
    def forward(context, values):
        return torch.zeros_like(values)

    @staticmethod
    def backward(context, gradient):
        return torch.full_like(gradient, math.inf)


@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_one_bad_update_is_skipped_counted_and_named(tmp_path, small_config, monkeypatch, capsys, kind):
    monkeypatch.setattr(local, "objective", Poison([2], kind))
    train(small_config("pivot", *EVERY_STEP_UPDATES), tmp_path / "run")
    rows = repeatable_rows(tmp_path / "run")
    assert [row["optim/skipped_updates"] for row in rows] == [0, 1, 0]
    assert [row["optim/updates"] for row in rows] == [1, 0, 1]
    (dumped,) = read_rows(tmp_path / "run" / "nonfinite.jsonl")
    assert (dumped["step"], dumped["what"]) == (2, kind)
    assert len(dumped["prompts"]) == 3, "the minibatch's prompts, all in one micro-batch"
    assert f"step 2: {kind} is not finite, update skipped; prompts: {dumped['prompts'][0]}" in (
        capsys.readouterr().out
    )
    before, after = (
        load_file(tmp_path / "run" / "checkpoints" / f"step-{step}" / "model" / "model.safetensors")
        for step in (2, 3)
    )
    assert all(bool(torch.isfinite(weight).all()) for weight in before.values())
    assert any(not torch.equal(before[name], after[name]) for name in before), "the next step learns again"


def test_only_the_micro_batch_with_the_bad_loss_is_named(tmp_path, small_config, monkeypatch):
    monkeypatch.setattr(local, "objective", Poison([1], "loss"))
    config = small_config("dapo", *EVERY_STEP_UPDATES, "train.steps=1", "train.micro_batch_tokens=500")
    with pytest.raises(UserError, match="the run has trained nothing: all of its 1 updates were skipped"):
        train(config, tmp_path / "run", quiet=True)
    (dumped,) = read_rows(tmp_path / "run" / "nonfinite.jsonl")
    assert len(dumped["prompts"]) < 3


def test_some_in_a_row_end_the_run_and_it_goes_on_from_the_last_good_checkpoint(
    tmp_path, small_config, monkeypatch
):
    settings = (*EVERY_STEP_UPDATES, "train.steps=6", "train.max_bad_updates=3", "checkpoint.every=2")
    run = tmp_path / "run"
    monkeypatch.setattr(local, "objective", Poison(range(3, 100), "loss"))
    with pytest.raises(UserError, match=r"^3 updates in a row were not finite, the last because of its loss"):
        train(small_config("pivot", *settings), run, quiet=True)
    status = json.loads((run / "run.json").read_text())
    assert status["status"] == "failed"
    assert "3 updates in a row" in status["reason"]
    assert newest_checkpoint(run).name == "step-4"
    assert find_damage(newest_checkpoint(run)) is None
    monkeypatch.setattr(local, "objective", REAL_OBJECTIVE)
    assert resume(run, quiet=True).finished
    assert [row["optim/skipped_updates"] for row in repeatable_rows(run)] == [0, 0, 1, 1, 0, 0]
    assert [row["step"] for row in read_rows(run / "nonfinite.jsonl")] == [3, 4]
    assert [row["step"] for row in read_rows(run / "nonfinite.dropped.jsonl")] == [5]


def test_a_resumed_run_remembers_how_many_were_bad(tmp_path, small_config, monkeypatch):
    settings = (*EVERY_STEP_UPDATES, "train.steps=6", "train.max_bad_updates=3")
    monkeypatch.setattr(local, "objective", Poison(range(1, 100), "loss"))
    with pytest.raises(UserError, match="3 updates in a row"):
        train(small_config("dapo", *settings), tmp_path / "run", quiet=True)
    monkeypatch.setattr(local, "objective", Poison(range(1, 100), "loss"))
    with pytest.raises(UserError, match="3 updates in a row"):
        resume(tmp_path / "run", quiet=True)
    assert len(repeatable_rows(tmp_path / "run")) == 3, "two before the checkpoint and one more"


def test_weights_that_are_not_finite_are_never_saved(tmp_path, small_config, monkeypatch):
    real_step, steps = MasterAdamW.step, []

    def broken_step(self):
        real_step(self)
        steps.append(1)
        if len(steps) == 2:
            with torch.no_grad():
                self.parameters[3].view(-1)[0] = math.inf

    monkeypatch.setattr(MasterAdamW, "step", broken_step)
    run = tmp_path / "run"
    with pytest.raises(
        UserError, match=r"after step 2 1 of the model's weights are not finite, .* not saved"
    ):
        train(small_config("pivot", *EVERY_STEP_UPDATES), run, quiet=True)
    assert [checkpoint.step for checkpoint in CheckpointStore(run).finished()] == [1]
    monkeypatch.setattr(MasterAdamW, "step", real_step)
    assert resume(run, quiet=True).finished


def test_a_step_on_weights_that_are_not_finite_is_skipped_and_named(tmp_path, small_config, monkeypatch):
    """Nothing to save in between: the rollout itself runs on NaN, and does not crash."""
    real_step = MasterAdamW.step

    def broken_step(self):
        real_step(self)
        with torch.no_grad():
            for weight in self.parameters:
                weight.fill_(math.nan)

    monkeypatch.setattr(MasterAdamW, "step", broken_step)
    config = small_config("pivot", *EVERY_STEP_UPDATES, "checkpoint.every=100")
    with pytest.raises(UserError, match=r"after step 2 \d+ of the model's weights are not finite"):
        train(config, tmp_path / "run", quiet=True)
    (dumped,) = read_rows(tmp_path / "run" / "nonfinite.jsonl")
    assert (dumped["step"], dumped["what"], len(dumped["prompts"])) == (2, "loss", 3)
    rows = repeatable_rows(tmp_path / "run")
    assert rows[1]["optim/skipped_updates"] == 1
    assert rows[1]["nonfinite"], "what was not finite is null and listed"


def test_spikes_by_hand():
    history = SpikeWatch()
    for step in range(ENOUGH):
        row = {"loss/total": [1.0, 2.0, 3.0, 2.0][step % 4], "optim/grad_norm_max": 0.5}
        assert history.spikes(row) == {}, "too early to know what is usual"
        history.add(row)
    history.add({"loss/total": None, "step": 9})  # not finite, or no update
    # Median 2; absolute deviations 1 0 1 0 1 0 1 0, their median 0.5: one sigma is 0.7413.
    spikes = history.spikes({"loss/total": 2 + 7.413, "optim/grad_norm_max": 20.0})
    assert spikes == pytest.approx({"loss/spike": 10.0, "optim/grad_spike": 40.0})
    assert spike_message({"loss/spike": 9.0, "optim/grad_spike": 40.0}) == (
        "the gradient norm is 40 times the median of the last steps"
    )
    assert spike_message({"loss/spike": 9.0}) is None
    assert history.spikes({"optim/updates": 0}) == {}


def test_spikes_look_back_over_a_window_and_survive_a_resume():
    rows = [{"loss/total": float(i), "optim/grad_norm_max": float(i)} for i in range(100)]
    recalled, later = SpikeWatch(rows), SpikeWatch(rows[-WINDOW:])
    row = {"loss/total": 100.0, "optim/grad_norm_max": 100.0}
    assert recalled.spikes(row) == later.spikes(row)
    assert recalled.spikes(row)["optim/grad_spike"] == pytest.approx(100 / 83.5)


def test_a_falling_format_is_reported_whenever_the_fall_has_doubled_also_after_a_resume():
    shares = [0.7] * 10 + [0.99] * 20 + [0.90] * 30 + [0.82] * 30
    rows = [{"step": i, "reward/format": share} for i, share in enumerate(shares)]
    watch = FormatWatch()
    said = {row["step"]: sentence for row in rows if (sentence := watch.add(row))}
    # The mean of 16 steps falls from 0.99 by 0.09/16 a step: 0.050625 are gone with the ninth low one, step 38; twice
    # that is gone at 0.88875, with the third step of 0.08/16 after 0.90, step 62; four times that never.
    assert list(said) == [38, 62]
    assert "94% over the last 16 steps, 99% at best" in said[38]
    for broken_off in (20, 38, 39, 61, 70):
        resumed = FormatWatch(rows[:broken_off])
        heard = {row["step"]: sentence for row in rows[broken_off:] if (sentence := resumed.add(row))}
        assert heard == {step: sentence for step, sentence in said.items() if step >= broken_off}


def test_a_format_that_varies_or_is_being_learnt_is_not_reported():
    rows = [{"reward/format": 0.2 + 0.007 * i + 0.04 * (-1) ** i} for i in range(100)]
    assert not any(map(FormatWatch().add, [*rows, {"optim/updates": 0}]))


def test_a_spike_is_in_the_metrics_and_reported(tmp_path, small_config, monkeypatch, capsys):
    real = local.objective
    count = 0

    def shocked(method, inputs, totals):
        nonlocal count
        count += 1
        loss, values = real(method, inputs, totals)
        return (loss * 1e4 if count == 10 else loss), values

    monkeypatch.setattr(local, "objective", shocked)
    settings = ("train.steps=10", "checkpoint.every=100", "rollout.max_tokens=24", "train.prompts_per_step=2")
    train(
        small_config("dapo", *EVERY_STEP_UPDATES[:1], "train.minibatch_prompts=2", *settings),
        tmp_path / "run",
    )
    rows = repeatable_rows(tmp_path / "run")
    assert all("loss/spike" not in row for row in rows[:8])
    assert rows[8]["optim/grad_spike"] < 100 < rows[9]["optim/grad_spike"]
    assert "step 10: " in capsys.readouterr().out.partition("times the median")[0]
