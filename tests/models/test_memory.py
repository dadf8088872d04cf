"""Freed memory goes back to the machine."""

import os
import platform

import pytest
import torch

from pivot.models.memory import release_free_memory


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_gaps_between_blocks_in_use_are_returned():
    blocks = [torch.ones(16_384) for _ in range(4096)]  # 256 MiB in blocks of 64 KiB
    kept = blocks[::64]
    blocks.clear()
    before = _resident()
    release_free_memory()
    assert before - _resident() > 128 * 2**20
    assert all(bool((block == 1).all()) for block in kept)


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
