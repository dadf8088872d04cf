"""`pivot train --engine verl`: the process that a person started. It starts verl's, shows what it does, and passes
on the wish to stop."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from pivot.config import Config, from_dict, to_dict
from pivot.durable import write_json
from pivot.engines.verl.compose import ClusterOptions, Launch, compose
from pivot.engines.verl.files import CLUSTER, LOG, PARENT, PROGRESS, STOP
from pivot.engines.verl.requirements import check_environment, check_machine, check_supported
from pivot.errors import UserError
from pivot.runs.folder import RunFolder
from pivot.runs.run import RunResult

POLL_SECONDS = 0.2
LAST_SECONDS = 20.0
"""For Ray to put its processes away once it is told to end."""


class RunFailed(UserError):
    """verl's process ended without finishing; the message is the reason, in one sentence."""


def train(config: Config, out: Path, cluster: ClusterOptions, *, quiet: bool = False) -> RunResult:
    """Train from the beginning into a new folder."""
    _check(config, cluster)
    with RunFolder.create(out) as folder:
        folder.write_config(to_dict(config))
        write_json(out / CLUSTER, dataclasses.asdict(cluster))
    return _run(config, out, cluster, resume=False, quiet=quiet)


def resume(out: Path, *, quiet: bool = False) -> RunResult:
    """Go on where a run stopped, with as many ranks as it had."""
    with RunFolder.open(out) as folder:
        config = from_dict(folder.read_config())
    cluster = saved_options(out)
    assert cluster is not None, "the caller has looked"
    _check(config, cluster)
    return _run(config, out, cluster, resume=True, quiet=quiet)


def saved_options(out: Path) -> ClusterOptions | None:
    """How a run was spread; None for a run of the embedded engine."""
    path = out / CLUSTER
    if not path.is_file():
        return None
    saved = json.loads(path.read_bytes())
    return ClusterOptions(**{**saved, "extra": tuple(saved["extra"])})


def describe(config: Config, out: Path, cluster: ClusterOptions) -> str:
    """What `--dry-run` prints: the command, its environment, and the configuration it starts from."""
    check_supported(config)
    settings = json.dumps(to_dict(config), indent=2)
    return f"# {out / 'config.json'}\n{settings}\n\n# verl is started with\n{compose(config, cluster, out).text()}"


def _check(config: Config, cluster: ClusterOptions) -> None:
    check_supported(config)
    check_machine(config, cluster)
    check_environment()


def _run(config: Config, out: Path, cluster: ClusterOptions, *, resume: bool, quiet: bool) -> RunResult:
    (out / STOP).unlink(missing_ok=True)
    # Short: Ray puts sockets there, whose paths may have 107 bytes.
    temporary = Path(tempfile.mkdtemp(prefix="pivot-", dir="/tmp" if os.path.isdir("/tmp") else None))
    try:
        launch = compose(config, cluster, out, resume=resume, temporary=temporary)
        child = _Child(launch, out, config.checkpoint.stop_seconds, quiet)
        if cluster.address is None:
            child.private |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        code = child.wait()
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    status = json.loads((out / "run.json").read_bytes()) if (out / "run.json").exists() else {}
    if child.abandoned and status.get("status") == "running":
        status = {"status": "stopped", "reason": child.abandoned}
        with RunFolder.open(out) as folder:
            folder.update_status(**status)
    if status.get("status") not in ("finished", "stopped"):
        raise RunFailed(_reason(out, status, code))
    rows = (out / "metrics.jsonl").read_bytes().splitlines() if (out / "metrics.jsonl").exists() else []
    return RunResult(out, len(rows), status["status"] == "finished")


def _reason(out: Path, status: Mapping[str, Any], code: int) -> str:
    """What the driver wrote down; where it could not, what its process left behind."""
    reason = status.get("reason") if status.get("status") == "failed" else None
    if reason is None:
        ending = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        reason = f"verl's driver was {ending}" if code < 0 else f"verl's driver {ending}"
        with RunFolder.open(out) as folder:
            folder.update_status(status="failed", reason=reason)
    return f"{reason} ({out / LOG} has all that verl and Ray said)"


@dataclass
class _Child:
    """verl's process and the terminal that waits for it."""

    launch: Launch
    out: Path
    patience: float
    """Seconds that a step may take to finish and be saved once a stop is asked for."""
    quiet: bool
    asked: list[signal.Signals] = field(default_factory=list)
    abandoned: str | None = None
    """Why the last step was not waited for."""
    private: dict[str, str] = field(default_factory=lambda: {PARENT: str(os.getpid())})
    """Whom to end with, and the word by which a local Ray's processes know each other: Ray would leave one at home."""
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
                start_new_session=True,  # Ctrl-C is for this process alone
            )
            try:
                while process.poll() is None and self._go_on():
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

    def _go_on(self) -> bool:
        """The first signal asks for a checkpoint; a second SIGINT, or impatience, ends everything."""
        if not self.asked:
            return True
        name = self.asked[0].name
        if self._deadline is None:
            self._deadline = time.monotonic() + self.patience
            (self.out / STOP).write_text(name, encoding="ascii")
            print(f"{name}: saving after this step (Ctrl-C to leave at once)", file=sys.stderr)
        if signal.SIGINT in self.asked[1:]:
            self.abandoned = "interrupted twice"
        elif time.monotonic() > self._deadline:
            self.abandoned = f"{name}, step abandoned after {self.patience:g} s"
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
    """Let Ray put its processes away; it does so when its driver is told to end."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(LAST_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
