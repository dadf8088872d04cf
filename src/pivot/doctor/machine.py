"""This machine: versions, processor, memory, GPUs, and installed extras."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch

from pivot.models.encoding import usable_cores

LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pillow", "pyarrow")
EXTRAS = {
    "lora": ("peft",),
    "quantized": ("bitsandbytes",),
    "vllm": ("vllm", "num2words"),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "swanlab": ("swanlab",),
    "trackio": ("trackio",),
}
"""Extra of pyproject.toml -> the distributions it installs."""
OTHER = {"verl": (("verl", "ray"), "an environment of its own: docs/cluster.md")}
"""What no extra installs -> its distributions, and how to get it."""


@dataclass(frozen=True)
class Device:
    """A device to train on."""

    name: str
    total_bytes: int
    free_bytes: int
    kind: str
    """`cuda` or `cpu`."""


@dataclass(frozen=True)
class Machine:
    """What `inspect_machine` finds."""

    python: str
    system: str
    cores: int
    libraries: dict[str, str | None]
    """Distribution -> version; None: not installed."""
    extras: dict[str, dict[str, str | None]]
    other: dict[str, dict[str, str | None]]
    memory: Device
    gpus: list[Device]

    def device(self, name: str) -> Device:
        """The device that a `model.device` names; a GPU that does not exist falls back to the processor."""
        index = int(name.partition(":")[2] or 0)
        return self.memory if name == "cpu" or index >= len(self.gpus) else self.gpus[index]


def inspect_machine() -> Machine:
    """Inspect this machine without loading a model or an optional library."""
    return Machine(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        cores=usable_cores(),
        libraries={name: _version(name) for name in LIBRARIES},
        extras={extra: {name: _version(name) for name in names} for extra, names in EXTRAS.items()},
        other={name: {part: _version(part) for part in parts} for name, (parts, _) in OTHER.items()},
        memory=_memory(),
        gpus=[_gpu(index) for index in range(torch.cuda.device_count())],
    )


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _gpu(index: int) -> Device:
    free, total = torch.cuda.mem_get_info(index)
    return Device(torch.cuda.get_device_name(index), total, free, "cuda")


def _memory() -> Device:
    """The machine's memory, or the container's limit if that is lower."""
    total = free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        lines = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    limit = _container_limit()
    if limit is not None and limit < total:
        total, free = limit, min(free, limit)
    return Device("CPU", total, free, "cpu")


def _container_limit() -> int | None:
    """Memory limit of the control group (version 2 or 1); None: no limit."""
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        file = Path(name)
        if file.exists():
            text = file.read_text(encoding="ascii").strip()
            return None if text == "max" else int(text)
    return None
