"""CPUs as a platform of verl, with gloo between the ranks; registered on machines without a GPU."""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

NAME = "cpu"
PLENTY = 1 << 34
"""Bytes reported as free; nothing depends on it."""


class _Device(types.ModuleType):
    """`torch.cpu` with the names of `torch.cuda` that verl uses."""

    def __init__(self) -> None:
        super().__init__("pivot_cpu_device")
        self.is_available = lambda: False
        self.empty_cache = self.ipc_collect = lambda: None
        self.synchronize = self.set_device = lambda *_: None
        self.current_device = lambda: torch.device("cpu")
        self.device_count = lambda: 1
        self.max_memory_allocated = self.max_memory_reserved = lambda *_: 0
        self.memory_allocated = self.memory_reserved = lambda *_: 0
        self.reset_peak_memory_stats = lambda *_: None
        self.mem_get_info = lambda *_: (PLENTY, PLENTY)
        self.get_device_name = lambda *_: "CPU"
        self.get_rng_state, self.set_rng_state = torch.get_rng_state, torch.set_rng_state

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)


@PlatformRegistry.register(platform=NAME)
class CpuPlatform(PlatformBase):
    """Ranks are processes; the local Ray cluster is told that there is one GPU for each."""

    device_name = NAME
    vendor_name = NAME
    device_module = _Device()

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return not torch.cuda.is_available()

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


def use_gloo() -> None:
    """verl names one backend per device type, here `cpu:gloo,cpu:gloo`, which torch refuses: name it once."""
    from verl.utils import distributed
    from verl.workers import engine_workers

    original = distributed.initialize_global_process_group_ray

    def start(timeout_second: int | None = None, backend: str | None = None) -> None:
        original(timeout_second, backend or "gloo")

    distributed.initialize_global_process_group_ray = start
    engine_workers.initialize_global_process_group_ray = start
