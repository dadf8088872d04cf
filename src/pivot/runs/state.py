"""A run's state on disk: model, optimizer, buffer, gate, data position. Nothing in it is pickled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from pivot.durable import write_json
from pivot.engines.tensor_file import load_tensors, save_tensors
from pivot.errors import UserError
from pivot.experience import storage
from pivot.models.loading import save_policy
from pivot.training.trainer import Trainer

VERSION = 1
ADAPTERS = "adapters.safetensors"


def save_state(trainer: Trainer, folder: Path) -> None:
    """Everything that the next step depends on. Draws hang on (seed, step, prompt), so there is no random state
    but the buffer's own."""
    save_policy(trainer.policy, folder / "model")
    adapters = {
        name: p.detach() for name, p in trainer.policy.trainable_parameters().items() if ".lora_" in name
    }
    if adapters:
        # They are merged into model/; training goes on from the adapters themselves.
        save_tensors(folder / ADAPTERS, adapters)
    save_tensors(folder / "optimizer.safetensors", trainer.updater.optimizer.state_dict())
    save_progress(trainer, folder)


def save_progress(trainer: Trainer, folder: Path) -> None:
    """All but weights and optimizer: buffer, gate, data position, step."""
    trainer.sources.buffer.save(folder / "buffer")
    write_json(
        folder / "state.json",
        {
            "version": VERSION,
            "step": trainer.finished_steps,
            "stream": trainer.sources.stream.state_dict(),
            "gate": trainer.gate.state_dict(),
            "keep_rates": trainer.sources.keep_rates.state_dict(),
            "budgets": trainer.budgets,
        },
    )


def load_state(trainer: Trainer, folder: Path) -> None:
    """Put a checkpoint's state into a trainer whose policy was loaded from `weights_path`."""
    load_progress(trainer, folder)
    if (folder / ADAPTERS).exists():
        parameters = trainer.policy.trainable_parameters()
        with torch.no_grad():
            for name, value in load_tensors(folder / ADAPTERS).items():
                parameters[name].copy_(value)
    trainer.updater.optimizer.load_state_dict(load_tensors(folder / "optimizer.safetensors"))


def load_progress(trainer: Trainer, folder: Path) -> None:
    """The counterpart of `save_progress`."""
    state = _read_json(folder / "state.json")
    if state.get("version") != VERSION:
        raise UserError(
            f"{folder} was written in state format {state.get('version')}; this pivot reads {VERSION}"
        )
    trainer.sources.buffer.load_state_dict(storage.load_state(folder / "buffer"))
    trainer.sources.stream.load_state_dict(state["stream"])
    trainer.gate.load_state_dict(state["gate"])
    if "keep_rates" in state:  # written since dynamic sampling asks for more than is missing
        trainer.sources.keep_rates.load_state_dict(state["keep_rates"])
    if "budgets" in state:
        trainer.budgets = state["budgets"]
    trainer.finished_steps = state["step"]


def weights_path(folder: Path, lora: bool) -> str | None:
    """Where a resumed run's model is loaded from: its checkpoint, or with adapters again where it started."""
    return None if lora else str(folder / "model")


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_bytes())
