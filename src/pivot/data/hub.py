"""Data sets of the Hugging Face hub: download once, read the files, say what to do where that fails."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pivot.errors import UserError


@dataclass(frozen=True)
class HubFiles:
    """A hub set in the local cache."""

    folder: Path
    boundary: Path
    """The cache folder of the repository: a snapshot's files are links into it."""


def download(
    hub_id: str, split: str, config: str | None, revision: str | None, files: tuple[str, ...] = ()
) -> HubFiles:
    """Fetch the files of one split (from the cache where they are there, or where HF_HUB_OFFLINE is set)."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    patterns = list(files) or split_patterns(split, config)
    includes = "".join(f' --include "{pattern}"' for pattern in files)
    command = f"hf download {hub_id} --repo-type dataset{includes} --local-dir DIR"
    try:
        folder = snapshot_download(hub_id, repo_type="dataset", revision=revision, allow_patterns=patterns)
    except GatedRepoError as gated:
        raise UserError(
            f"{hub_id} is gated: accept its terms at https://huggingface.co/datasets/{hub_id}, log in with "
            "`hf auth login` (or set HF_TOKEN), and try again."
        ) from gated
    except (RepositoryNotFoundError, HFValidationError) as unknown:
        raise UserError(
            f"there is no data set {hub_id!r} on the hub: check the spelling, log in with `hf auth login` "
            "if it is private, or give a local copy with --path."
        ) from unknown
    except RevisionNotFoundError as unknown:
        raise UserError(f"{hub_id} has no revision {revision!r}: check it, or leave it out.") from unknown
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as unreachable:
        raise UserError(
            f"{hub_id} is not in the local cache and the hub cannot be reached: run `{command}` on a machine "
            "with network and give the folder with --path DIR."
        ) from unreachable
    if not any(path.is_file() for path in Path(folder).rglob("*")):
        raise UserError(
            f"{hub_id} has no file that matches {', '.join(patterns)}: name another split with --split, or "
            f"run `{command}` and give the folder with --path DIR."
        )
    return HubFiles(Path(folder), Path(folder).parent.parent)


def split_patterns(split: str, config: str | None) -> list[str]:
    """The usual names of a split's parquet files, and of JSON lines."""
    home = f"{config}/*" if config else "*"
    return [
        f"{home}{split}-*.parquet",
        f"{home}{split}.parquet",
        f"{home}{split}*/*.parquet",
        f"{home}{split}.jsonl",
    ]
