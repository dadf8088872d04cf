"""Checkpoints that are written while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

Result = TypeVar("Result")
Checksums = dict[str, str]
"""File within a checkpoint's folder -> its sha256."""


class Saving(Protocol):
    """An engine's part of a checkpoint. What is written was copied before; training may change the weights."""

    def wait(self) -> Checksums:
        """Block until every byte is on the disk; the checksums that are known by then."""
        ...


def in_background(work: Callable[[], Result]) -> Future[Result]:
    """The result of `work`, computed in a thread that does not keep the process alive."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again by whoever asks for the result
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
