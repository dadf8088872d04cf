"""What `pivot train --engine verl` does when a process is lost; the real thing is tests/verl/test_nodes.py."""

import json

import pytest

from pivot import recipes
from pivot.cli import main
from pivot.config import to_dict
from pivot.durable import write_json
from pivot.engines.verl import launch
from pivot.engines.verl.compose import ClusterOptions
from pivot.errors import UserError
from pivot.runs.folder import RunFolder
from pivot.runs.run import RunResult

CONFIG = recipes.get("tiny")


class Attempts:
    """In place of verl's process: ends as it is told, one attempt after the other."""

    def __init__(self, *endings):
        self.endings, self.seen = list(endings), []

    def __call__(self, config, out, cluster, *, resume, quiet):
        self.seen.append((cluster.nodes, cluster.gpus, resume))
        ending = self.endings.pop(0)
        if isinstance(ending, Exception):
            raise ending
        return RunResult(out, 8, ending)


@pytest.fixture
def run(tmp_path):
    with RunFolder.create(tmp_path / "run") as folder:
        folder.write_config(to_dict(CONFIG))
    return tmp_path / "run"


def lost():
    return launch.ProcessesLost("rank 1 has died")


def test_lost_processes_are_a_reason_to_start_again(run, monkeypatch, capsys):
    attempts = Attempts(lost(), lost(), True)
    monkeypatch.setattr(launch, "_attempt", attempts)
    found = launch._run(CONFIG, run, ClusterOptions(gpus=2, restarts=2), resume=False, quiet=True)
    assert found.finished
    assert attempts.seen == [(1, 2, False), (1, 2, True), (1, 2, True)]
    said = capsys.readouterr().err.splitlines()
    assert said == [f"rank 1 has died; restart {n} of 2, from step 0" for n in (1, 2)]
    status = json.loads((run / "run.json").read_text())
    assert status["restarts"] == [{"reason": "rank 1 has died", "step": 0}] * 2


@pytest.mark.parametrize("ending", [lost(), launch.RunFailed("train.lr is too high")], ids=["lost", "failed"])
def test_the_last_loss_and_any_other_failure_end_the_run(run, monkeypatch, ending):
    attempts = Attempts(lost(), ending)
    monkeypatch.setattr(launch, "_attempt", attempts)
    with pytest.raises(launch.RunFailed, match=str(ending)):
        launch._run(CONFIG, run, ClusterOptions(restarts=1), resume=False, quiet=True)
    assert len(attempts.seen) == 2


@pytest.mark.parametrize(("found", "used"), [(1, 1), (2, 2), (5, 3)])
def test_a_run_goes_on_with_the_nodes_that_are_there(run, monkeypatch, found, used):
    attempts = Attempts(lost(), True)
    monkeypatch.setattr(launch, "_attempt", attempts)
    monkeypatch.setattr(launch, "count_nodes", lambda address, gpus: found)
    options = ClusterOptions(nodes=3, gpus=2, address="head:6379", restarts=1)
    launch._run(CONFIG, run, options, resume=False, quiet=True)
    assert attempts.seen == [(3, 2, False), (used, 2, True)]
    monkeypatch.setattr(launch, "count_nodes", lambda address, gpus: 0)
    with pytest.raises(UserError, match="no node of the Ray cluster at head:6379 has 2 free GPUs"):
        launch._run(CONFIG, run, options, resume=True, quiet=True)


def test_a_resumed_run_may_have_other_nodes_and_keeps_them(run, monkeypatch, capsys):
    """Options of earlier versions, without `restarts`, are read too."""
    write_json(
        run / "cluster.json", {"nodes": 1, "gpus": 4, "address": None, "rollout": None, "extra": ["a=b"]}
    )
    attempts = Attempts(True, True)
    monkeypatch.setattr(launch, "_attempt", attempts)
    monkeypatch.setattr(launch, "_check", lambda config, cluster: None)
    assert main(["train", "--resume", str(run), "--gpus", "2", "--restarts", "3", "--no-report"]) == 0
    saved = json.loads((run / "cluster.json").read_text())
    assert (saved["gpus"], saved["restarts"], saved["extra"]) == (2, 3, ["a=b"])
    assert main(["train", "--resume", str(run), "--no-report"]) == 0
    assert attempts.seen == [(1, 2, True)] * 2
    capsys.readouterr()
    assert main(["train", "--resume", str(run), "--rollout", "sglang"]) == 2
    assert "leave out --rollout" in capsys.readouterr().err
    assert main(["train", "--resume", str(run), "--restarts", "-1"]) == 2
    assert "--restarts must be at least 0, got -1" in capsys.readouterr().err
