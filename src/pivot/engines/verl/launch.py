"""`pivot train --engine verl`: the process that the user started. It checks the machine, starts verl's process, shows
its progress and passes on requests to stop. Needs no verl."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from pivot.config import Config, from_dict, to_dict
from pivot.durable import finished_checkpoints, read_json, write_json
from pivot.engines.settings import model_options
from pivot.engines.verl.child import LOG, POLL_SECONDS, STOP, Child
from pivot.engines.verl.compose import ClusterOptions, compose, device_of
from pivot.engines.verl.environment import INSTALL, check_found
from pivot.engines.verl.nodes import count_nodes
from pivot.engines.verl.overrides import check_extra
from pivot.errors import UserError
from pivot.jsonl import read_rows
from pivot.models.loading import check_folder, check_shardable
from pivot.rewards.judge import MEMORY
from pivot.runs.folder import RunFolder, read_status
from pivot.runs.resuming import Accept, find_start
from pivot.runs.run import RunResult
from pivot.runs.stopping import Stopping

CLUSTER = "cluster.json"
"""In the run's folder: nodes, ranks and settings, from which `--resume` starts it again."""
LOCK_SECONDS = 60.0
"""For a driver that has lost its job to end."""
TESTED = {
    "verl": ("0.9.1", "0.9.2"),
    "ray": ("2.41", "3"),
    "transformers": ("5.5.3", "5.11"),
    "tensordict": ("0.8", "0.10.1"),
    "TransferQueue": ("0.1.10", "0.2"),
}
"""Distribution -> the first version that is known to work, and the first that is not."""


class RunFailed(UserError):
    """verl's process ended before the run did; the message is the reason, in one sentence."""


class ProcessesLost(RunFailed):
    """A process or node of the run has died: the run can go on from its last checkpoint."""


def train(config: Config, out: Path, cluster: ClusterOptions, *, quiet: bool = False) -> RunResult:
    """Train from the beginning into a new folder."""
    _check(config, cluster)
    with RunFolder.create(out) as folder:
        folder.write_config(to_dict(config))
        write_json(out / CLUSTER, dataclasses.asdict(cluster))
    return _run(config, out, cluster, resume=False, quiet=quiet)


def resume(
    out: Path, *, quiet: bool = False, accept: Accept | None = None, changes: Mapping[str, Any] | None = None
) -> RunResult:
    """Continue where a run stopped.

    Args:
        changes: fields of ClusterOptions that differ from now on, e.g. the number of nodes.
    """
    with RunFolder.open(out) as folder:
        config = from_dict(folder.read_config())
        # verl's driver does the same once more; here a refusal is seen before anything is started.
        find_start(folder, config.checkpoint.every, accept or Accept())
    saved = saved_options(out)
    assert saved is not None, "checked by the caller"
    cluster = dataclasses.replace(saved, **(changes or {}))
    _check(config, cluster)
    write_json(out / CLUSTER, dataclasses.asdict(cluster))
    return _run(config, out, cluster, resume=True, quiet=quiet)


def saved_options(out: Path) -> ClusterOptions | None:
    """The nodes and ranks of a run; None for a run of the local engine."""
    path = out / CLUSTER
    if not path.is_file():
        return None
    advice = "restore it from a copy, or start a new run from the weights with --model"
    saved = read_json(path, advice)
    try:
        return ClusterOptions(**{**saved, "extra": tuple(saved["extra"])})
    except (KeyError, TypeError) as damage:
        raise UserError(f"{path} does not hold the options of a cluster; {advice}.") from damage


def describe(config: Config, out: Path, cluster: ClusterOptions) -> str:
    """What `--dry-run` prints: the command, its environment, and the configuration it starts from."""
    check_supported(config)
    check_shardable(config.model.path)
    check_extra(cluster.extra)
    settings = json.dumps(to_dict(config), indent=2)
    return f"# {out / 'config.json'}\n{settings}\n\n# verl is started with\n{compose(config, cluster, out).text()}"


def _check(config: Config, cluster: ClusterOptions) -> None:
    check_supported(config)
    check_shardable(config.model.path)
    check_extra(cluster.extra)
    check_machine(config, cluster)
    check_environment()
    check_found(None if device_of(config) == "cpu" else cluster.rollout or "vllm")
    check_folder(config.model.path, model_options(config))


def _run(config: Config, out: Path, cluster: ClusterOptions, *, resume: bool, quiet: bool) -> RunResult:
    """Train; after the loss of a process or node go on from the last checkpoint, at most `restarts` times."""
    for attempt in range(cluster.restarts + 1):
        resuming = resume or attempt > 0
        present = _present(cluster) if resuming else cluster
        try:
            return _attempt(config, out, present, resume=resuming, quiet=quiet)
        except ProcessesLost as loss:
            if attempt == cluster.restarts:
                raise
            _note_restart(out, str(loss), attempt + 1, cluster.restarts)
    raise AssertionError("the last attempt returns or raises")


def _present(cluster: ClusterOptions) -> ClusterOptions:
    """The nodes of a running cluster that are there, at most as many as were asked for."""
    if cluster.address is None:
        return cluster
    found = count_nodes(cluster.address, cluster.gpus)
    if found == 0:
        raise UserError(
            f"no node of the Ray cluster at {cluster.address} has {cluster.gpus} free GPUs; add one, then --resume"
        )
    if found < cluster.nodes:
        print(f"{found} of {cluster.nodes} nodes are there; going on with those", file=sys.stderr)
    return dataclasses.replace(cluster, nodes=min(found, cluster.nodes))


def _note_restart(out: Path, reason: str, number: int, limit: int) -> None:
    with _unlocked(out) as folder:
        step = next((step for step, _ in finished_checkpoints(out)), 0)
        past = folder.status().get("restarts") or []
        folder.update_status(restarts=[*past, {"reason": reason, "step": step}], reason=None, lost=[])
    print(f"{reason}; restart {number} of {limit}, from step {step}", file=sys.stderr)


def _attempt(config: Config, out: Path, cluster: ClusterOptions, *, resume: bool, quiet: bool) -> RunResult:
    """One process of verl, from start to end."""
    (out / STOP).unlink(missing_ok=True)
    # Short: Ray puts sockets there, whose paths are limited to 107 bytes.
    temporary = Path(tempfile.mkdtemp(prefix="pivot-", dir="/tmp" if os.path.isdir("/tmp") else None))
    try:
        launch = compose(config, cluster, out, resume=resume, temporary=temporary)
        child = Child(launch, out, partial(_patience, config, out), quiet)
        if cluster.address is None:
            child.private |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        code = child.wait()
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    status = read_status(out)
    if child.abandoned and status.get("status") == "running":
        status = {"status": "stopped", "reason": child.abandoned}
        with _unlocked(out) as folder:
            folder.update_status(**status)
    if status.get("status") not in ("finished", "stopped"):
        # A driver that ended without recording a reason was killed, or its node was.
        lost = bool(status.get("lost")) or status.get("status") == "running"
        kind = ProcessesLost if lost and not child.asked else RunFailed
        raise kind(_reason(out, status, code))
    rows = (out / "metrics.jsonl").read_bytes().splitlines() if (out / "metrics.jsonl").exists() else []
    return RunResult(out, len(rows), status["status"] == "finished")


@contextmanager
def _unlocked(out: Path) -> Iterator[RunFolder]:
    """The run's folder, once the driver has ended: on a running cluster Ray ends it after its job."""
    end = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            folder = RunFolder.open(out)
            break
        except UserError:
            if time.monotonic() > end:
                raise
            time.sleep(POLL_SECONDS)
    with folder:
        yield folder


def _patience(config: Config, out: Path) -> float:
    """`checkpoint.stop_seconds`, or by the latest step's time."""
    rows = read_rows(out / "metrics.jsonl")
    return Stopping(
        config.checkpoint.stop_seconds, step_seconds=lambda: rows[-1]["time/step"] if rows else 0.0
    ).patience


def _reason(out: Path, status: Mapping[str, Any], code: int) -> str:
    """What the driver wrote into run.json; otherwise how its process ended."""
    reason = status.get("reason") if status.get("status") == "failed" else None
    if reason is None:
        ending = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        reason = f"verl's driver was {ending}" if code < 0 else f"verl's driver {ending}"
        with _unlocked(out) as folder:
            folder.update_status(status="failed", reason=reason)
    return f"{reason} ({out / LOG} has the output of verl and Ray)"


def check_environment() -> None:
    """Raise a UserError with the first thing that is missing, too old or too new."""
    for name, (first, end) in TESTED.items():
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            raise UserError(
                f"--engine verl needs {name}, which is not installed here; verl needs an environment of its own: "
                f"{INSTALL}"
            ) from None
        if not _parse(first) <= _parse(version) < _parse(end):
            raise UserError(
                f"{name} {version} is installed, but --engine verl was tested with {first} up to, not including, "
                f"{end}: install one of these; {INSTALL}"
            )
    if "pivot" not in {entry.name for entry in metadata.entry_points(group="verl.plugins")}:
        raise UserError(
            "this installation of pivot is not registered as a plug-in of verl; install it again: pip install -e ."
        )


def check_machine(config: Config, cluster: ClusterOptions) -> None:
    """Check that the GPUs exist; on a running cluster Ray counts them itself."""
    if device_of(config) == "cpu":
        if cluster.nodes > 1 and cluster.address is None:
            raise UserError(
                f"{cluster.nodes} nodes need a running Ray cluster: start it with `ray start --num-gpus=RANKS` on each "
                "node, where without GPUs the number is how many ranks the node takes, and set --address"
            )
        return
    if cluster.address is not None:
        return
    found = torch.cuda.device_count()
    if found == 0:
        raise UserError(
            f"training {config.model.path} with --engine verl needs GPUs and torch finds none here; set "
            "model.device=cpu to run on CPUs, or --address for a Ray cluster with GPUs"
        )
    if cluster.nodes > 1:
        raise UserError(
            f"{cluster.nodes} nodes need a running Ray cluster: start it with `ray start` and set --address"
        )
    if found < cluster.gpus:
        raise UserError(f"--gpus is {cluster.gpus}, but torch finds {found} here")


def check_supported(config: Config) -> None:
    """Refuse settings that only the local engine supports."""
    if config.model.quantize is not None:
        raise UserError("--engine verl shards weights in float32: model.quantize needs --engine local")
    if config.train.optimizer != "adamw" or config.train.offload_optimizer:
        raise UserError(
            "--engine verl shards AdamW's state over the GPUs: train.optimizer and train.offload_optimizer need "
            "--engine local"
        )
    for name in ("deterministic", "kept_activations"):
        if getattr(config.train, name):
            raise UserError(f"train.{name} needs --engine local")
    if any(name.startswith(MEMORY) for name in config.reward.functions):
        raise UserError(
            "--engine verl computes rewards in another process: name the function in reward.functions (file.py:name)"
        )


def _parse(version: str) -> tuple[int, ...]:
    """The numbers of a release, without suffixes such as `rc1` or `+cpu`."""
    return tuple(int(part) for part in re.match(r"\d+(?:\.\d+)*", version)[0].split("."))  # pyright: ignore[reportOptionalSubscript]
