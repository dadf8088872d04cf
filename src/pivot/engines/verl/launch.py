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
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

import torch

from pivot.config import Config, from_dict, to_dict
from pivot.durable import read_json, write_json
from pivot.engines.settings import model_options
from pivot.engines.verl.compose import ClusterOptions, Launch, compose, device_of
from pivot.engines.verl.environment import INSTALL, check_found
from pivot.engines.verl.overrides import check_extra
from pivot.errors import UserError
from pivot.jsonl import read_rows
from pivot.models.loading import check_folder, check_shardable
from pivot.rewards.judge import MEMORY
from pivot.runs.folder import RunFolder, read_status
from pivot.runs.resuming import Accept, find_start
from pivot.runs.run import RunResult
from pivot.runs.stopping import Stopping

PARENT = "PIVOT_PARENT"
"""Environment variable: the process of `pivot train`."""
CLUSTER = "cluster.json"
"""In the run's folder: nodes, ranks and settings, from which `--resume` starts it again."""
STOP = "stop"
"""In the run's folder: asks the run to save and stop after its step; holds the reason."""
PROGRESS = "progress.log"
"""In the run's folder: the progress that the process of `pivot train` shows."""
LOG = "verl.log"
"""In the run's folder: the output of verl and Ray."""
POLL_SECONDS = 0.2
LAST_SECONDS = 20.0
"""For Ray to end its processes."""
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


def train(config: Config, out: Path, cluster: ClusterOptions, *, quiet: bool = False) -> RunResult:
    """Train from the beginning into a new folder."""
    _check(config, cluster)
    with RunFolder.create(out) as folder:
        folder.write_config(to_dict(config))
        write_json(out / CLUSTER, dataclasses.asdict(cluster))
    return _run(config, out, cluster, resume=False, quiet=quiet)


def resume(out: Path, *, quiet: bool = False, accept: Accept | None = None) -> RunResult:
    """Continue where a run stopped, with as many ranks as it had."""
    with RunFolder.open(out) as folder:
        config = from_dict(folder.read_config())
        # verl's driver does the same once more; here a refusal is seen before anything is started.
        find_start(folder, config.checkpoint.every, accept or Accept())
    cluster = saved_options(out)
    assert cluster is not None, "checked by the caller"
    _check(config, cluster)
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
    (out / STOP).unlink(missing_ok=True)
    # Short: Ray puts sockets there, whose paths are limited to 107 bytes.
    temporary = Path(tempfile.mkdtemp(prefix="pivot-", dir="/tmp" if os.path.isdir("/tmp") else None))
    try:
        launch = compose(config, cluster, out, resume=resume, temporary=temporary)
        child = _Child(launch, out, partial(_patience, config, out), quiet)
        if cluster.address is None:
            child.private |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        code = child.wait()
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    status = read_status(out)
    if child.abandoned and status.get("status") == "running":
        status = {"status": "stopped", "reason": child.abandoned}
        with RunFolder.open(out) as folder:
            folder.update_status(**status)
    if status.get("status") not in ("finished", "stopped"):
        raise RunFailed(_reason(out, status, code))
    rows = (out / "metrics.jsonl").read_bytes().splitlines() if (out / "metrics.jsonl").exists() else []
    return RunResult(out, len(rows), status["status"] == "finished")


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
        with RunFolder.open(out) as folder:
            folder.update_status(status="failed", reason=reason)
    return f"{reason} ({out / LOG} has the output of verl and Ray)"


@dataclass
class _Child:
    """verl's process, as the terminal sees it."""

    launch: Launch
    out: Path
    patience: Callable[[], float]
    """Seconds that a step may take to finish and be saved after a request to stop."""
    quiet: bool
    asked: list[signal.Signals] = field(default_factory=list)
    abandoned: str | None = None
    """Why the last step was not waited for."""
    private: dict[str, str] = field(default_factory=lambda: {PARENT: str(os.getpid())})
    """More environment variables, kept out of `--dry-run`: the parent process, and a local Ray's token."""
    _deadline: float | None = None

    def wait(self) -> int:
        """Show its progress until it ends; returns its exit code."""
        shown = self.out / PROGRESS
        shown.touch()
        with (self.out / LOG).open("ab") as log, shown.open(encoding="utf-8") as progress, self._signals():
            progress.seek(0, os.SEEK_END)
            process = subprocess.Popen(
                self.launch.command,
                env={**os.environ, **self.launch.environment, **self.private},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches this process only
            )
            try:
                while process.poll() is None and self._continues():
                    self._show(progress)
                    time.sleep(POLL_SECONDS)
            finally:
                _end(process)
            self._show(progress)
            return process.returncode

    def _show(self, progress: TextIO) -> None:
        new = progress.read()
        if new and not self.quiet:
            print(new, end="", flush=True)

    def _continues(self) -> bool:
        """The first signal asks for a checkpoint; a second SIGINT, or a step that takes too long, ends the run."""
        if not self.asked:
            return True
        name = self.asked[0].name
        if self._deadline is None:
            self._deadline = time.monotonic() + self.patience()
            (self.out / STOP).write_text(name, encoding="ascii")
            print(f"{name}: saving after this step (Ctrl-C to quit at once)", file=sys.stderr)
        if signal.SIGINT in self.asked[1:]:
            self.abandoned = "interrupted twice"
        elif time.monotonic() > self._deadline:
            self.abandoned = f"{name}, step abandoned after {self.patience():g} s"
        return self.abandoned is None

    @contextmanager
    def _signals(self) -> Iterator[None]:
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {n: signal.signal(n, lambda n, _: self.asked.append(signal.Signals(n))) for n in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _end(process: subprocess.Popen) -> None:
    """Terminate the driver, upon which Ray ends its processes."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(LAST_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


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
        if cluster.nodes > 1 or cluster.address is not None:
            raise UserError(
                "without GPUs --engine verl runs on this machine alone: leave out --nodes and --address"
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
    if config.train.deterministic:
        raise UserError("train.deterministic needs --engine local")

    if any(name.startswith(MEMORY) for name in config.reward.functions):
        raise UserError(
            "--engine verl computes rewards in another process: name the function in reward.functions (file.py:name)"
        )


def _parse(version: str) -> tuple[int, ...]:
    """The numbers of a release, without suffixes such as `rc1` or `+cpu`."""
    return tuple(int(part) for part in re.match(r"\d+(?:\.\d+)*", version)[0].split("."))  # pyright: ignore[reportOptionalSubscript]
