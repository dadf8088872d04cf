"""A user's own code beside a run: called after steps, evaluations and checkpoints, and at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pivot.errors import UserError

if TYPE_CHECKING:
    from pivot.runs.run import RunResult


class Callback:
    """Override what you need; an exception in a callback ends the run, with a message that names the callback.

    Example:
        class Print(pivot.Callback):
            def on_step(self, step, metrics):
                print(step, metrics["reward/accuracy"])
    """

    def on_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """After each step, with its row of metrics.jsonl."""

    def on_eval(self, step: int, scores: Mapping[str, Any]) -> None:
        """After each evaluation: a validation (`name` is `validation`) or an entry of the before/after table."""

    def on_checkpoint(self, step: int, folder: Path) -> None:
        """After a checkpoint is complete; `folder / "model"` is a Hugging Face folder."""

    def on_end(self, result: RunResult) -> None:
        """When the run has finished or was stopped; not after an error."""


class Callbacks:
    """Calls the same event of several callbacks, in their order."""

    def __init__(self, callbacks: Sequence[Callback] = ()) -> None:
        if not isinstance(callbacks, Sequence):
            raise UserError(f"callbacks is {callbacks!r}, but must be a list: callbacks=[...]")
        for callback in callbacks:
            if not isinstance(callback, Callback):
                kind = f"the class {callback.__name__}" if isinstance(callback, type) else repr(callback)
                raise UserError(f"callbacks holds {kind}, but each must be an instance of pivot.Callback")
        self._callbacks = tuple(callbacks)

    def call(self, event: str, *arguments: Any) -> None:
        """`call("on_step", 3, row)`."""
        for callback in self._callbacks:
            try:
                getattr(callback, event)(*arguments)
            except Exception as error:
                name = f"{type(callback).__name__}.{event}"
                raise UserError(f"the callback {name} raised {type(error).__name__}: {error}") from error
