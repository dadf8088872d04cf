"""Calls a reward function of this process, such as a notebook's, in a thread with a time limit."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

from pivot.errors import UserError
from pivot.rewards.calling import Caller, Reply, values_in


class RewardThread:
    """Calls a Python function in a thread of its own.

    A call that takes longer than `timeout` is a UserError. A thread cannot be killed: the function goes on until it
    returns or this process ends, and a call that holds the interpreter lock (a long computation in C) blocks this
    process too. A function given by name (`module:function`) runs in a process and has neither limit.
    """

    def __init__(self, function: Callable[..., Any], name: str, timeout: float) -> None:
        self.name, self.timeout = name, timeout
        self._caller = Caller(function)
        self.wants_images = self._caller.signature.wants_images
        self._calls: queue.SimpleQueue[Mapping[str, Any] | None] | None = None
        self._replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()

    def call(self, columns: Mapping[str, Any]) -> list[float | None]:
        if self._calls is None:
            self._start()
        assert self._calls is not None
        self._calls.put(columns)
        try:
            reply = self._replies.get(timeout=self.timeout)
        except queue.Empty:
            self.close()
            raise UserError(
                f"the reward function {self.name} did not return within {self.timeout:g} s; its thread cannot be "
                "stopped (raise reward.timeout if it needs longer)"
            ) from None
        return values_in(reply, self.name, len(columns["completions"]))

    def close(self) -> None:
        """Let the thread end after its present call; a later call starts a new one."""
        if self._calls is not None:
            self._calls.put(None)
        self._calls, self._replies = None, queue.SimpleQueue()

    def _start(self) -> None:
        calls, replies, caller = queue.SimpleQueue(), self._replies, self._caller

        def serve() -> None:
            while (columns := calls.get()) is not None:
                replies.put(caller.call(columns))

        self._calls = calls
        threading.Thread(target=serve, name=f"reward {self.name}", daemon=True).start()
