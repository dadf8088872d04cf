"""What `--engine verl` needs of an environment and a machine; each lack is one sentence."""

from __future__ import annotations

import re
from importlib import metadata

import torch

from pivot.config import Config
from pivot.engines.verl.compose import ClusterOptions, device_of
from pivot.errors import UserError

TESTED = {
    "verl": ("0.9.1", "0.9.2"),
    "ray": ("2.41", "3"),
    "transformers": ("5.5.3", "5.11"),
    "tensordict": ("0.8", "0.10.1"),
    "TransferQueue": ("0.1.10", "0.2"),
}
"""Distribution -> the first version that is known to work, and the first that is not."""
INSTALL = "docs/cluster.md has the commands; `make .venv-verl/.ready` builds the environment its tests run in"


def check_environment() -> None:
    """Raise a UserError with the first thing that is missing, too old or too new."""
    for name, (first, end) in TESTED.items():
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            raise UserError(
                f"--engine verl needs {name}, which is not installed here; verl wants an environment of its own: "
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
    """GPUs where they are needed and can be counted; on an existing cluster Ray counts them itself."""
    if device_of(config) == "cpu":
        if cluster.nodes > 1 or cluster.address is not None:
            raise UserError(
                "without GPUs --engine verl runs on this machine alone: leave --nodes and --address out"
            )
        return
    if cluster.address is not None:
        return
    found = torch.cuda.device_count()
    if found == 0:
        raise UserError(
            f"training {config.model.path} with --engine verl needs GPUs and torch finds none here; set "
            "model.device=cpu to run on the processor all the same, or --address for a Ray cluster that has them"
        )
    if cluster.nodes > 1:
        raise UserError(
            f"{cluster.nodes} nodes need a running Ray cluster: start it with `ray start` and give --address"
        )
    if found < cluster.gpus:
        raise UserError(f"--gpus {cluster.gpus} are asked for, but torch finds {found} here")


def check_supported(config: Config) -> None:
    """What the embedded engine can do and this one cannot."""
    if config.model.lora_rank:
        raise UserError(
            "--engine verl trains all weights: model.lora_rank works on the embedded engine alone"
        )
    if config.model.freeze_vision:
        raise UserError(
            "--engine verl trains all weights: model.freeze_vision works on the embedded engine alone"
        )


def _parse(version: str) -> tuple[int, ...]:
    """The numbers of a release; what stands behind them (`rc1`, `+cpu`) does not count."""
    return tuple(int(part) for part in re.match(r"\d+(?:\.\d+)*", version)[0].split("."))  # pyright: ignore[reportOptionalSubscript]
