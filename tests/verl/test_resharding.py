"""Saved by two ranks, continued by one and by three: the same state, and the numbers of the two that went on."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("verl")
HERE = Path(__file__).parent
CLOSE = 1e-5
"""The tolerance of test_conformance.py."""


CASES = {
    "plain": ["pivot"],
    "adapters": ["pivot@lora"],
    "offloaded": ["pivot", "actor_rollout_ref.actor.fsdp_config.optimizer_offload=true"],
}
"""A case of conformance.py and settings of verl, by name."""


def start(folder: Path, size: int, case: list[str]) -> list[subprocess.Popen]:
    command = [sys.executable, "-W", "ignore", str(HERE / "resharding.py")]
    shared = [str(size), str(folder / f"meeting-{size}"), str(folder / "saved"), str(folder / f"{size}.json")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [*command, str(rank), *shared, *case],
            env=environment,
            stdout=(folder / f"{size}-{rank}.log").open("wb"),
            stderr=subprocess.STDOUT,
        )
        for rank in range(size)
    ]


@pytest.fixture(scope="module", params=CASES)
def seen(request, tmp_path_factory):
    """What each number of ranks saw, by that number."""
    folder = tmp_path_factory.mktemp("resharding")
    for sizes in ((2,), (1, 3)):
        processes = [process for size in sizes for process in start(folder, size, CASES[request.param])]
        try:
            codes = [process.wait(timeout=1200) for process in processes]
        finally:
            for process in processes:
                process.kill()
        said = "".join((folder / f"{size}-0.log").read_text()[-2000:] for size in sizes)
        assert not any(codes), said
    found = {size: json.loads((folder / f"{size}.json").read_text()) for size in (1, 2, 3)}
    assert all(one["offloads"] == (request.param == "offloaded") for one in found.values())
    kept = [name for name in found[2]["state"]["numbers"] if name.startswith("exp_avg of ")]
    assert all(".lora_" in name for name in kept) == (request.param == "adapters")
    return folder, found


@pytest.mark.parametrize("size", [1, 3])
def test_buffer_step_position_gate_weights_and_optimizer_are_the_same(seen, size):
    saved, loaded = seen[1][2]["state"], seen[1][size]["state"]
    numbers = saved["numbers"].keys()
    assert any(name.startswith("exp_avg_sq of ") for name in numbers)
    assert any(name.startswith("step of ") for name in numbers)
    assert loaded == saved


@pytest.mark.parametrize("size", [1, 3])
def test_the_next_steps_have_the_same_metrics(seen, size):
    """Absolute up to 1, relative above, as in the conformance test."""
    rows = list(zip(seen[1][2]["rows"], seen[1][size]["rows"], strict=True))
    assert len(rows) == 2
    for expected, found in rows:
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            is_number = isinstance(value, int | float)
            close = pytest.approx(value, rel=CLOSE, abs=CLOSE) if is_number else value
            assert found[name] == close, f"step {expected['step']}: {name}"


def test_every_rank_wrote_one_file_and_nothing_is_pickled(seen):
    names = sorted(path.name for path in (seen[0] / "saved" / "shards").iterdir())
    assert names == ["shard-00000.safetensors", "shard-00001.safetensors"]


@pytest.mark.parametrize(("ranks", "called"), [(2, ["load_checkpoint"]), (3, [])])
def test_checkpoints_of_earlier_versions_fit_as_many_ranks_as_wrote_them(tmp_path, ranks, called):
    from pivot.engines.verl.worker import RayRanks
    from pivot.errors import UserError

    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "fsdp_config.json").write_text('{"FSDP_version": 2, "world_size": 2}')
    calls = []
    group = SimpleNamespace(world_size=ranks, load_checkpoint=lambda path: calls.append("load_checkpoint"))
    refused = (
        contextlib.nullcontext() if called else pytest.raises(UserError, match="saved by 2 ranks, and 3 are")
    )
    with refused:
        RayRanks(group).load(tmp_path)
    assert calls == called
