"""A cluster run's checkpoint: the model as a Hugging Face folder, verl's shards of weights and optimizer, and the
driver's own state. All nodes must see the run's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pivot.errors import UserError
from pivot.runs.checkpoint import Checkpoint
from pivot.runs.state import save_progress
from pivot.training.trainer import Trainer

SHARDS = "shards"
"""What verl's checkpoint manager writes: weights, optimizer and random state, a file a rank."""


def save_cluster(trainer: Trainer, group: Any, folder: Path) -> None:
    """Everything that the next step depends on."""
    group.save_checkpoint(str(folder / SHARDS), None, trainer.finished_steps)
    group.export(str(folder / "model"))
    save_progress(trainer, folder)


def load_shards(group: Any, start: Checkpoint) -> None:
    """Weights, optimizer and random state, each rank its own."""
    found = saved_ranks(start.path)
    if found != group.world_size:
        raise UserError(
            f"{start.path} was saved by {found} ranks and {group.world_size} are to load it; resume with as many "
            f"(--nodes, --gpus), or start a new run from its weights with --model {start.path / 'model'}"
        )
    group.load_checkpoint(str(start.path / SHARDS))


def saved_ranks(checkpoint: Path) -> int | None:
    """How many ranks wrote a checkpoint; None for one of the embedded engine."""
    path = checkpoint / SHARDS / "fsdp_config.json"
    return json.loads(path.read_bytes())["world_size"] if path.is_file() else None
