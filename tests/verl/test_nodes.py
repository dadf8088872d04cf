"""Two Ray nodes on this machine, one rank each, through `--address`; one of them is killed in the middle of a run."""

import json
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import pytest

pytest.importorskip("verl")

import psutil

from pivot.engines.verl.nodes import count_nodes
from pivot.errors import UserError

STEPS, EVERY, KILLED = 8, 4, 6
"""Steps of the run, between its checkpoints, and before a node is killed."""
SAME = 1e-3
"""As for a run of the local engine (test_runs.py): steps after the first start from weights that rounding moved."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Node:
    """`ray start --block`: a raylet with room for one rank."""

    def __init__(self, log, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "ray.scripts.scripts", "start", "--block", "--num-gpus=1",
             "--num-cpus=32", "--object-store-memory=200000000", "--node-ip-address=127.0.0.1",
             "--disable-usage-stats", *arguments],
            stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def kill(self) -> None:
        """Everything on the node at once, as a preemption does."""
        if self.process.poll() is None:
            for process in [*psutil.Process(self.process.pid).children(recursive=True), self.process]:
                process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """(address, the second node) of two nodes with a token of their own."""
    short = tempfile.mkdtemp(prefix="pivot-", dir="/tmp")
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_AUTH_MODE", "token")
    patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    patch.setenv("RAY_enable_metrics_collection", "0")
    patch.setenv("RAY_memory_monitor_refresh_ms", "0")
    address = f"127.0.0.1:{free_port()}"
    nodes = []
    with (tmp_path_factory.mktemp("ray") / "ray.log").open("wb") as log:
        try:
            port = address.rpartition(":")[2]
            nodes.append(
                Node(log, "--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={short}")
            )
            wait_until(lambda: answers(int(port)))
            nodes.append(Node(log, f"--address={address}"))
            wait_until(lambda: both_are_there(address))
            yield address, nodes[1]
        finally:
            for node in reversed(nodes):
                node.kill()
            patch.undo()
            shutil.rmtree(short, ignore_errors=True)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def both_are_there(address: str) -> bool:
    try:
        return count_nodes(address, 1) == 2
    except UserError:  # the head has opened its port, and is not ready yet
        return False


def wait_until(condition) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end, "the nodes do not start"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def restarted(cluster, start):
    """PIVOT on both nodes; after six steps one is killed, and the run goes on to its end by itself."""
    address, second = cluster
    settings = [f"train.steps={STEPS}", f"checkpoint.every={EVERY}"]
    run = start(
        "nodes", "--nodes", "2", "--gpus", "1", "--address", address, "--restarts", "2", settings=settings
    )
    run.wait_for(KILLED)
    second.kill()
    code = run.finish()
    assert code == 0, run.said()
    return run


def rows_of(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_run_restarts_by_itself_with_the_node_that_is_left(restarted):
    status = json.loads((restarted.out / "run.json").read_text())
    assert status["status"] == "finished"
    (note,) = status["restarts"]
    assert note["step"] == EVERY
    assert "died" in note["reason"] or "verl's driver" in note["reason"]
    assert len(status["ranks"]) == 1
    said = restarted.out.with_suffix(".out").read_text()
    assert f"restart 1 of 2, from step {EVERY}" in said
    assert "1 of 2 nodes are there; going on with those" in said
    assert "Traceback" not in said
    options = json.loads((restarted.out / "cluster.json").read_text())
    assert options["nodes"] == 2, "the next restart takes two again, if they are there"


def test_two_ranks_saved_and_one_went_on(restarted):
    def shards(step: int) -> int:
        return len(list((restarted.out / "checkpoints" / f"step-{step}" / "shards").iterdir()))

    assert (shards(EVERY), shards(STEPS)) == (2, 1)
    assert not list((restarted.out / "checkpoints").rglob("*.pt"))


def test_the_numbers_are_those_of_the_run_that_was_not_interrupted(restarted):
    """The two ranks had gone on from the same checkpoint until the node was killed; their rows were set aside."""
    rows = {row["step"]: row for row in rows_of(restarted.out / "metrics.jsonl")}
    assert list(rows) == list(range(1, STEPS + 1))
    before = rows_of(restarted.out / "metrics.dropped.jsonl")
    assert [row["step"] for row in before][: KILLED - EVERY] == list(range(EVERY + 1, KILLED + 1))
    same = 0
    for row in before:
        again = rows[row["step"]]
        if row["rollout/tokens"] != again["rollout/tokens"]:
            break  # one token, drawn within rounding of its neighbour, is another one
        for name, value in row.items():
            if name.startswith(("time/", "memory/")):
                continue
            is_number = isinstance(value, int | float)
            expected = pytest.approx(value, rel=SAME, abs=SAME) if is_number else value
            assert again[name] == expected, f"step {row['step']}: {name}"
        same += 1
    assert same >= 1
