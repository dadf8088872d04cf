"""Out of memory: try again with half the tokens. On a CPU: give back what the allocator holds."""

from __future__ import annotations

import ctypes
import gc
import platform
from collections.abc import Callable
from typing import TypeVar

import torch

from pivot.errors import UserError

Value = TypeVar("Value")

_WORDS = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc", "ALLOC_FAILED")
"""Messages of plain RuntimeErrors from torch's allocators and the libraries below."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means out of memory; only GPUs have an exception class for it."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


def release_free_memory() -> None:
    """Return freed memory to the machine.

    glibc keeps freed blocks below 32 MiB for later. Those of activations leave gaps that nothing else fits into, which
    adds up to gigabytes beside a large model.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def within_memory(work: Callable[[], Value], halve: Callable[[], bool], setting: str) -> Value:
    """The result of `work`; each time it runs out of memory it is started again with half its budget.

    Args:
        work: can be started again; reads its budget each time.
        halve: halves the budget; False if that is switched off or nothing is left to divide.
        setting: the budget's name in the configuration.
    """
    while True:
        try:
            return work()
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            if not halve():
                raise UserError(
                    f"out of memory, and {setting} was not or cannot be lowered further ({_first_line(error)}); "
                    "see the section Memory of docs/training.md"
                ) from error
        # After the handler: the exception's traceback kept everything that the attempt had allocated.
        release_memory()


def release_memory() -> None:
    """Free memory that is no longer referenced."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]
