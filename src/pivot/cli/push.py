"""`pivot push RUN --to USER/NAME`: upload a run's model with its card to the Hugging Face hub."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pivot.errors import UserError

RUN_FILES = ("config.json", "metrics.jsonl", "rollouts.jsonl", "eval/scores.json", "report.html")
"""What `--add` can upload besides the model; rollouts and pages hold rows and images of the training data."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument("--to", required=True, metavar="USER/NAME", help="the repository on the hub")
    parser.add_argument(
        "--step", type=int, metavar="N", help="the checkpoint to upload (default: the newest)"
    )
    parser.add_argument(
        "--add", action="append", default=[], choices=RUN_FILES, metavar="FILE",
        help=f"also upload a file of the run, below run/: {', '.join(RUN_FILES)}; may be repeated",
    )  # fmt: skip
    parser.add_argument("--public", action="store_true", help="create a public repository (default: private)")
    parser.add_argument("--dry-run", action="store_true", help="show what would be uploaded and exit")


def run(args: argparse.Namespace) -> int:
    _check_name(args.to)
    files = to_upload(args.run, args.step, args.add)
    sizes = {
        name: len(content) if isinstance(content, bytes) else content.stat().st_size
        for name, content in files.items()
    }
    for name, size in sizes.items():
        print(f"{size:>14,}  {name}")
    visibility = "public" if args.public else "private"
    print(
        f"{sum(sizes.values()):>14,}  bytes in {len(files)} files for {args.to} ({visibility} if it is new)"
    )
    if args.dry_run:
        print("dry run: nothing was uploaded")
        return 0
    print(_upload(files, args.to, private=not args.public, message=f"Upload {args.run.resolve().name}"))
    return 0


def to_upload(run: Path, step: int | None, added: list[str]) -> dict[str, Path | bytes]:
    """Name in the repository -> content: the checkpoint's model folder with its card, and the files asked for."""
    from pivot.durable import finished_checkpoints
    from pivot.runs.card import CARD, model_card
    from pivot.runs.extension import stored_config

    config = stored_config(run)
    checkpoints = dict(finished_checkpoints(run))
    if not checkpoints:
        raise UserError(f"{run} has no checkpoint yet, so there is no model to upload")
    chosen = max(checkpoints) if step is None else step
    if chosen not in checkpoints:
        known = ", ".join(map(str, sorted(checkpoints)))
        raise UserError(f"{run} has no checkpoint of step {chosen}; it has {known}")
    model = checkpoints[chosen] / "model"
    files: dict[str, Path | bytes] = {
        path.relative_to(model).as_posix(): path for path in sorted(model.rglob("*")) if path.is_file()
    }
    if CARD not in files:
        scores = run / "eval" / "scores.json"
        entries = json.loads(scores.read_bytes())["evaluations"] if scores.exists() else []
        files[CARD] = model_card(config, entries, chosen).encode()
    for name in dict.fromkeys(added):
        if not (run / name).is_file():
            raise UserError(f"{run} has no {name}; leave out --add {name}")
        files[f"run/{name}"] = run / name
    return files


def _check_name(name: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as wrong:
        raise UserError(f"--to is {name!r}, but must be USER/NAME: {wrong}") from wrong
    if name.count("/") != 1:
        raise UserError(f"--to is {name!r}, but must be USER/NAME")


def _upload(files: dict[str, Path | bytes], repository: str, *, private: bool, message: str) -> str:
    """Create the repository if it does not exist and add the files in one commit; returns its address."""
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    # The base class of its HTTP library, httpx or httpx2: a connection that fails raises another subclass of it.
    network = tuple(
        base
        for base in HfHubHTTPError.__mro__
        if base.__name__ == "HTTPError" and issubclass(base, BaseException)
    )
    api = HfApi()
    operations = [CommitOperationAdd(name, content) for name, content in files.items()]
    try:
        url = api.create_repo(repository, private=private, exist_ok=True)
        api.create_commit(repository, operations, commit_message=message)
    except LocalTokenNotFoundError as unknown:
        raise UserError(
            "there is no token for the hub: log in with `hf auth login`, or set HF_TOKEN"
        ) from unknown
    except HfHubHTTPError as refused:
        status = refused.response.status_code if refused.response is not None else None
        if status in (401, 403):
            raise UserError(
                f"the hub refuses to write to {repository}: log in with `hf auth login` as a user who may"
            ) from refused
        reason = str(refused).strip().splitlines()[0]
        raise UserError(f"the hub did not accept the upload to {repository} ({reason})") from refused
    except (*network, OSError) as unreachable:
        raise UserError(
            "the hub cannot be reached from here (no network, or HF_HUB_OFFLINE is set): run this command where it "
            "can, or see what it would upload with --dry-run"
        ) from unreachable
    return str(url)
