"""A model to evaluate: its folder, the run it comes from, and what makes it the same model again."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pivot.config import Config, from_dict
from pivot.durable import sha256
from pivot.errors import UserError
from pivot.evaluate.settings import Dtype
from pivot.models.loading import resolve_model

HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")
NOT_THE_MODEL = (".md", ".lock", ".gitattributes")


@dataclass(frozen=True)
class Target:
    """A model as a user names it.

    Example:
        find_target("runs/x").when == "step-60"
    """

    name: str
    """What was given."""
    folder: Path
    """A Hugging Face folder."""
    run: Path | None = None
    """The run's folder whose checkpoint it is."""

    @property
    def title(self) -> str:
        """The last part of the name: a row's label, a folder's name."""
        return Path(self.name).name if self.run is None else self.run.resolve().name

    @property
    def when(self) -> str | None:
        """`step-40` of a run's checkpoint; None for a model that no run made."""
        return self.folder.parent.name if self.run else None

    @cached_property
    def config(self) -> Config | None:
        """The run's configuration."""
        return None if self.run is None else from_dict(json.loads((self.run / "config.json").read_bytes()))

    @cached_property
    def fingerprint(self) -> str:
        """A digest of every file that the model consists of; notes beside it don't count."""
        digest = hashlib.sha256()
        for path in sorted(self.folder.iterdir()):
            if path.is_file() and not path.name.endswith(NOT_THE_MODEL):
                digest.update(f"{path.name}\0{sha256(path)}\0".encode())
        return digest.hexdigest()[:16]

    @property
    def dtype(self) -> Dtype:
        """The run's, or what the model's files say; float32 where that is neither of the two that are known."""
        if self.config is not None:
            return self.config.model.dtype
        saved = json.loads((self.folder / "config.json").read_bytes())
        return "bfloat16" if (saved.get("dtype") or saved.get("torch_dtype")) == "bfloat16" else "float32"


def find_target(name: str) -> Target:
    """`tiny`, a Hugging Face folder, a run's folder, one of its checkpoints, or a hub id (fetched once)."""
    folder = Path(resolve_model(name))
    if not folder.is_dir():
        folder = _fetch(name)
    if not (folder / "config.json").is_file():
        raise UserError(
            f"{folder} holds no config.json; give a Hugging Face folder, a run's folder or a hub id."
        )
    return Target(name, folder, _run_of(folder))


def _run_of(folder: Path) -> Path | None:
    """RUN/checkpoints/step-N/model belongs to RUN."""
    is_checkpoint = folder.name == "model" and folder.parent.name.startswith("step-")
    if not is_checkpoint or folder.parent.parent.name != "checkpoints":
        return None
    run = folder.parents[2]
    return run if (run / "config.json").is_file() else None


def _fetch(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        return Path(snapshot_download(name, allow_patterns=list(HUB_FILES)))
    except GatedRepoError as gated:
        raise UserError(
            f"{name} is gated: accept its terms at https://huggingface.co/{name}, log in with `hf auth login`, and "
            "try again."
        ) from gated
    except (RepositoryNotFoundError, HFValidationError) as unknown:
        raise UserError(
            f"there is no model {name!r}: give `tiny`, a Hugging Face folder, a run's folder, or an owner/name of the "
            "hub."
        ) from unknown
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as unreachable:
        raise UserError(
            f"the model {name!r} is no local folder, is not in the local cache, and the hub cannot be reached: run "
            f"`hf download {name} --local-dir DIR` on a machine with network and give DIR."
        ) from unreachable
