"""TensorBoard and W&B, with the real libraries where they are installed."""

import importlib.util

import pytest

from pivot.config import Config, LogConfig
from pivot.errors import UserError
from pivot.runs.trackers import open_trackers, scalars

METRICS = {
    "step": 3,
    "reward/accuracy": 0.5,
    "buffer/size": 12,
    "buffer/success_histogram": [1, 2],
    "visual/dependency": None,
    "note": "text",
}


def test_only_numbers_go_out():
    assert scalars(METRICS) == {"reward/accuracy": 0.5, "buffer/size": 12.0}


def test_none_is_asked_for_by_default(tmp_path):
    assert open_trackers(tmp_path, Config()) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("library", "log"), [("tensorboard", LogConfig(tensorboard=True)), ("wandb", LogConfig(wandb="project"))]
)
def test_a_missing_library_is_named_with_its_extra(library, log, tmp_path):
    if importlib.util.find_spec(library):
        pytest.skip(f"{library} is installed")
    with pytest.raises(
        UserError, match=rf"log\.{library} needs {library}.*pip install 'pivot-rl\[loggers\]'"
    ):
        open_trackers(tmp_path, Config(log=log))


def test_tensorboard_reads_back_what_two_sessions_wrote(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for step in (3, 4):
        (tracker,) = open_trackers(tmp_path, Config(log=LogConfig(tensorboard=True)))
        tracker.write(step, METRICS)
        tracker.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["buffer/size", "reward/accuracy"]
    assert [(event.step, event.value) for event in events.Scalars("reward/accuracy")] == [(3, 0.5), (4, 0.5)]


def test_wandb_keeps_one_run_a_folder(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for step in (3, 4):
        (tracker,) = open_trackers(tmp_path, Config(log=LogConfig(wandb="project")))
        tracker.write(step, METRICS)
        tracker.close()
    identity = (tmp_path / "wandb_id").read_text().strip()
    assert identity.startswith(tmp_path.name[:40])
    files = list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert files
    assert {file.stem for file in files} == {f"run-{identity}"}
    assert all(b"reward/accuracy" in file.read_bytes() for file in files)
