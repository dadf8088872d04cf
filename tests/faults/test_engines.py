"""The same faults for every engine: one run that meets them all, one after the other, and still ends well.

`local` runs with `make test`, `verl` with `make test-verl` in its own environment.
"""

import importlib.util
import json
from pathlib import Path

import pytest
from fault_harness import PATIENCE, differences, newest_checkpoint, repeatable_rows, wait_until
from soak_table import record

from pivot.config import Config
from pivot.errors import UserError
from pivot.runs.checkpoint import CheckpointStore
from pivot.runs.folder import RunFolder

ENGINES = [
    "local",
    pytest.param(
        "verl",
        marks=pytest.mark.skipif(
            importlib.util.find_spec("verl") is None, reason="verl has an environment of its own"
        ),
    ),
]
STEPS = 10
"""verl's processes take a few more before they notice that the driver was killed."""
SETTINGS = (f"train.steps={STEPS}", "train.prompts_per_step=4", "rollout.max_tokens=32",
            "method.dynamic_sampling=false", "reward.function=fault_rewards:as_ordered", "reward.timeout=3",
            "checkpoint.stop_seconds=600")  # fmt: skip


class Engine:
    """Starts and resumes runs of one engine; `ordered` is what the reward function does."""

    def __init__(self, server, name: str) -> None:
        self.server, self.name = server, name

    def train(self, config: Config, run, ordered: str = "", **faults):
        options = () if self.name == "local" else ("--engine", "verl", "--gpus", "1")
        return self.server.train(config, run, *options, **self._order(ordered), **faults)

    def resume(self, run, ordered: str = "", **faults):
        wait_until(lambda: is_free(run), what="the end of the run that was killed")
        return self.server.resume(run, **self._order(ordered), **faults)

    def _order(self, ordered: str) -> dict[str, object]:
        # Ray needs its time to start on a busy machine; its processes find fault_rewards by PYTHONPATH.
        return {
            "environment": {"FAULT_REWARD": ordered, "PYTHONPATH": str(Path(__file__).parent)},
            "patience": PATIENCE if self.name == "local" else 2400.0,
        }


def is_free(run) -> bool:
    """Whether no trainer holds the folder."""
    try:
        with RunFolder.open(run):
            return True
    except UserError:
        return False


def status(run) -> str:
    return json.loads((run / "run.json").read_text())["status"]


def one_sentence(ended, words: str) -> None:
    assert ended.code == 2, ended.said[-2000:]
    assert words in ended.said
    assert "Traceback" not in ended.said


@pytest.mark.parametrize("name", ENGINES)
def test_a_run_that_meets_every_fault_ends_as_if_it_had_met_none(
    server, small_config, tmp_path, monkeypatch, name
):
    engine, run, config = Engine(server, name), tmp_path / "run", small_config("pivot", *SETTINGS)
    run.mkdir()
    (run / "checkpoints").symlink_to("/proc/1/nowhere")  # nobody may write there, root or not
    one_sentence(engine.train(config, run), f"cannot write {run}/checkpoints")
    assert status(run) == "failed"
    (run / "checkpoints").unlink()
    one_sentence(engine.resume(run, "raises"), "fault_rewards:as_ordered raised RuntimeError: as ordered")
    one_sentence(engine.resume(run, "sleeps"), "fault_rewards:as_ordered did not return within 3 s")
    assert engine.resume(run, signals=[("SIGKILL", f"step 2/{STEPS}")]).was_killed
    wait_until(lambda: is_free(run), what="the end of the run that was killed")
    damaged = newest_checkpoint(run)
    flip(damaged / "model" / "model.safetensors")
    first = int(damaged.name.removeprefix("step-"))  # of the steps that are done again
    stopped = engine.resume(run, signals=[("SIGTERM", f"step {first}/{STEPS}")])
    assert stopped.code == 3, stopped.said[-2000:]
    assert f"checkpoint {damaged.name} is damaged (model/model.safetensors: checksum differs)" in stopped.said
    assert status(run) == "stopped"
    ended = engine.resume(run)
    assert ended.code == 0, ended.said[-2000:]
    assert status(run) == "finished"
    assert [row["step"] for row in repeatable_rows(run)] == list(range(1, STEPS + 1))
    damage: list[str] = []
    CheckpointStore(run).latest_good(report=damage.append)
    assert damage == []
    if name == "local":
        assert engine.train(config, tmp_path / "whole").code == 0
        assert differences(run, tmp_path / "whole") == []
    faults = "refused checkpoint, raising and hanging reward, SIGKILL, flipped bit, SIGTERM"
    record("engines", f"{name}: {faults}", "finished" + (", bit for bit" if name == "local" else ""))


def flip(path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
