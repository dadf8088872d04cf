"""What tests share: one quiet thread each, no network, small real prompts, the tiny policy."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import json
import shutil
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from PIL import Image

torch.set_num_threads(1)

# What runs in the background of a shell or under nohup ignores these, and so would the runs that tests interrupt.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 8 * 2**30:
    # Thousands of small files that are synced one by one: a third of the time on a slow disk.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

SMALL = [
    "train.steps=3",
    "train.prompts_per_step=6",
    "train.minibatch_prompts=3",
    "rollout.responses=4",
    "rollout.max_tokens=64",
    "rollout.max_tries=2",
    "data.size=24",
    "data.validation_size=4",
    "eval.every=0",
    "eval.final_prompts=0",
    "checkpoint.every=100",
    "log.rollouts_per_step=0",
]


TOGETHER = {
    "trainers": ("faults/test_kill.py", "faults/test_signals.py", "faults/test_disk.py", "faults/test_engines.py",
                 "test_extending.py"),
    "verifier": tuple(f"rewards/test_verifier{part}.py" for part in ("", "_exact", "_geometry3k", "_hostile", "_pairs",
                                                                     "_papo")),
}  # fmt: skip
"""Files that share a process: the trainers' server, and comparisons whose time is limited."""
LONGEST = (
    "trainers",
    "verifier",
    "runs/test_runs.py",
    "sweep/test_sweep.py",
    "sweep/test_paper.py",
    "training/test_step.py",
    "models/test_families.py",
    "tiny_world/test_cells.py",
    "faults/test_damages.py",
)
"""What begins first, so that no process is left with much at the end."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With `--dist loadgroup` the tests of a file share a process, and so what their module sets up."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class FilesTogether(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0].removeprefix("tests/")
            return next((name for name, files in TOGETHER.items() if file in files), file)

        def _assign_work_unit(self, node):
            for name in reversed(LONGEST):
                if name in self.workqueue:
                    self.workqueue.move_to_end(name, last=False)
            super()._assign_work_unit(node)

    return FilesTogether(config, log)


@dataclass(frozen=True)
class Picture:
    """An image source that holds its image."""

    image: Image.Image

    def open(self) -> Image.Image:
        return self.image


@pytest.fixture(scope="session")
def picture():
    """Make an image source: a coloured box on white, of any size."""

    def make(width: int = 84, height: int = 84, colour: str = "red") -> Picture:
        image = Image.new("RGB", (width, height), "white")
        image.paste(Image.new("RGB", (width // 2, height // 3), colour), (width // 4, height // 4))
        return Picture(image)

    return make


@pytest.fixture
def policy():
    """The shipped tiny model, fresh for each test."""
    from pivot.models.loading import load_policy

    return load_policy("tiny")


@pytest.fixture(scope="session")
def save_tiny():
    """Makes the tiny model a checkpoint of a run."""
    from pivot import tiny
    from pivot.runs.checkpoint import CheckpointStore

    def save(run: Path, step: int) -> Path:
        def write(folder: Path) -> None:
            shutil.copytree(tiny.checkpoint_path("easy"), folder / "model")

        return CheckpointStore(run, keep_last=9).save(step, write).path

    return save


@pytest.fixture
def shared_data() -> Path:
    """The real samples beside the repository; tests that need them skip where they are absent."""
    folder = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("../shared/data is absent")
    return folder


@pytest.fixture(scope="session")
def small_config():
    """The tiny recipe cut down, for a method and those of the settings that it has."""

    def make(method: str = "pivot", *settings: str):
        from pivot import recipes
        from pivot.config import apply_settings
        from pivot.config.methods import settings_for
        from pivot.method import preset

        config = replace(recipes.get("tiny"), method=preset(method))
        return apply_settings(config, [*SMALL, *settings_for(config.method, settings)])

    return make


@pytest.fixture(scope="session")
def repeatable():
    """The rows of a metrics.jsonl without what differs from run to run."""

    def read(run):
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        return [{k: v for k, v in row.items() if not k.startswith(("time/", "memory/"))} for row in rows]

    return read


@pytest.fixture(scope="session")
def weights():
    """The weights of a run's newest checkpoint."""
    from safetensors.torch import load_file

    def read(run):
        newest = max((run / "checkpoints").glob("step-*"), key=lambda p: int(p.name[5:]))
        return load_file(newest / "model" / "model.safetensors")

    return read


@pytest.fixture(scope="session")
def server():
    """A process that starts trainers quickly; everything it started ends with it."""
    sys.path.insert(0, str(Path(__file__).parent / "faults"))
    from fault_harness import TrainerServer

    with TrainerServer() as started:
        yield started
