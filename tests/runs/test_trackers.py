"""The trackers, with the real libraries where they are installed: `make test-trackers` has all of them."""

import importlib.util
import json
import sqlite3
import time

import pytest
from PIL import Image

from pivot.config import Config, LogConfig
from pivot.errors import UserError
from pivot.runs.run import train
from pivot.runs.trackers import TRACKERS, Sample, SampleTracker, open_trackers, samples_of, scalars

METRICS = {
    "step": 3,
    "reward/accuracy": 0.5,
    "buffer/size": 12,
    "buffer/success_histogram": [1, 2],
    "visual/dependency": None,
    "note": "text",
}
SAMPLES = [
    Sample("a/1", "<image>How many?", "3", "\\boxed{3}", True, 1.0, Image.new("RGB", (30, 20), "red")),
    Sample("a/1", "<image>How many?", "3", "\\boxed{4}", False, -1.0, Image.new("RGB", (30, 20), "red")),
    Sample("b/2", "What is 2 + 2?", "4", "\\boxed{4}", True, 0.5, None),
]


def log_of(name):
    return LogConfig(**{name: True if name == "tensorboard" else "project"})


def write_sessions(run, name, steps=(3, 4)):
    """One session per step, the second as a resumed run writes it."""
    for step in steps:
        (tracker,) = open_trackers(run, Config(log=log_of(name)))
        assert isinstance(tracker, SampleTracker)
        tracker.write(step, METRICS)
        tracker.write_samples(step, SAMPLES)
        tracker.close()


def test_only_numbers_go_out():
    assert scalars(METRICS) == {"reward/accuracy": 0.5, "buffer/size": 12.0}


def test_none_is_asked_for_by_default(tmp_path):
    assert open_trackers(tmp_path, Config()) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("library", TRACKERS)
def test_a_missing_library_is_named_with_its_extra(library, tmp_path):
    if importlib.util.find_spec(library):
        pytest.skip(f"{library} is installed")
    with pytest.raises(
        UserError, match=rf"log\.{library} needs {library}.*pip install 'pivot-rl\[{library}\]'"
    ):
        open_trackers(tmp_path, Config(log=log_of(library)))


def test_a_run_gives_its_metrics_and_samples_to_a_tracker(tmp_path, small_config, monkeypatch):
    class Kept:
        def __init__(self):
            self.steps, self.samples, self.closed = [], [], False

        def write(self, step, metrics):
            self.steps.append((step, metrics["reward/accuracy"]))

        def write_samples(self, step, samples):
            self.samples += [(step, sample) for sample in samples]

        def close(self):
            self.closed = True

    kept = Kept()
    monkeypatch.setitem(TRACKERS, "kept", lambda run, config: kept)
    config = small_config("pivot", "train.steps=1", "log.rollouts_per_step=1", "log.rollouts_every=1")
    train(config, tmp_path, quiet=True)
    assert [step for step, _ in kept.steps] == [1]
    assert kept.closed
    (record,) = [json.loads(line) for line in (tmp_path / "rollouts.jsonl").read_text().splitlines()]
    assert [sample.response for _, sample in kept.samples] == [r["text"] for r in record["responses"]]
    assert kept.samples[0][1].image.size == (84, 84)
    assert samples_of([record | {"images": []}])[0].image is None


def test_tensorboard_reads_back_what_two_sessions_wrote(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write_sessions(tmp_path, "tensorboard")
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["buffer/size", "reward/accuracy"]
    assert [(event.step, event.value) for event in events.Scalars("reward/accuracy")] == [(3, 0.5), (4, 0.5)]
    assert events.Tags()["images"] == ["images/0"]
    assert "samples/2/text_summary" in events.Tags()["tensors"]


def test_wandb_keeps_one_run_per_folder(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    # Two sessions of one id need two processes.
    write_sessions(tmp_path, "wandb", steps=(3,))
    identity = (tmp_path / "wandb_id").read_text().strip()
    assert identity.startswith(tmp_path.name[:40])
    (file,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    assert file.stem == f"run-{identity}"
    # W&B's own process writes the file, on a busy machine after `finish` has returned.
    ends = time.monotonic() + 30
    while b"reward/accuracy" not in file.read_bytes() and time.monotonic() < ends:
        time.sleep(0.1)
    assert b"reward/accuracy" in file.read_bytes()
    (table,) = (tmp_path / "wandb").glob("offline-run-*/files/media/table/samples*.json")
    stored = json.loads(table.read_bytes())
    assert (stored["columns"][2], len(stored["data"])) == ("image", 3)


def test_mlflow_keeps_one_run_per_folder(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    write_sessions(run, "mlflow")
    client = mlflow.MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("project").experiment_id])
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    assert found.data.params["train.lr"] == "1e-06"
    assert [m.step for m in client.get_metric_history(found.info.run_id, "reward/accuracy")] == [3, 4]
    table = json.loads(
        (run.parent / client.download_artifacts(found.info.run_id, "samples.json")).read_text()
    )
    assert [row[0] for row in table["data"]] == [3] * 3 + [4] * 3


def test_swanlab_writes_offline(tmp_path, monkeypatch):
    pytest.importorskip("swanlab")
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    write_sessions(tmp_path, "swanlab")
    written = [file for file in (tmp_path / "swanlog").rglob("*") if file.is_file()]
    assert any(b"reward/accuracy" in file.read_bytes() for file in written)
    assert any(file.suffix == ".png" for file in written)


def test_trackio_keeps_one_run_per_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read when trackio is imported
    pytest.importorskip("trackio")
    write_sessions(tmp_path, "trackio")
    (database,) = (tmp_path / "trackio").rglob("project*.db")
    with sqlite3.connect(database) as stored:
        rows = stored.execute("select run_name, step, metrics from metrics order by step").fetchall()
    steps = [step for _, step, metrics in rows if "reward/accuracy" in str(metrics)]
    assert steps == [3, 4]
    assert {name for name, _, _ in rows} == {(tmp_path / "trackio_id").read_text().strip()}
