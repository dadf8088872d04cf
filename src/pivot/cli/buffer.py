"""`pivot buffer RUN [--top N] [--json]`: the content of a run's experience buffer."""

from __future__ import annotations

import argparse
import heapq
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from pivot.console import Console
from pivot.durable import DamagedFile, read_json
from pivot.errors import UserError
from pivot.experience import BufferRow, ExperienceBuffer, StoredResponse
from pivot.experience.storage import FILE_NAME
from pivot.runs.checkpoint import CheckpointStore
from pivot.terminal import printable

_BAR = 40
"""Length of the histogram's longest bar, in characters."""
_ANCHOR = 400
"""Characters of a response that are shown; --json has all of it."""


@dataclass(frozen=True)
class Location:
    """Where a buffer is, and the model whose tokenizer decodes its responses."""

    folder: Path
    model: Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=Path, help="folder of a run, a checkpoint or a buffer")
    parser.add_argument("--top", type=int, default=5, metavar="N", help="rows per table (default: 5)")
    parser.add_argument("--json", action="store_true", help="JSON instead of tables")


def run(args: argparse.Namespace) -> int:
    if args.top < 0:
        raise UserError(f"--top is {args.top}; it must be at least 0.")
    location = locate(args.run)
    check_replay(location)
    buffer = ExperienceBuffer.load(location.folder)
    overview = describe(buffer, args.top, load_decoder(location.model))
    overview = {"buffer": str(location.folder), **overview}
    if args.json:
        print(json.dumps(overview, indent=2))
    else:
        _print(overview)
    return 0


def locate(path: Path) -> Location:
    """The buffer in `path`, in a checkpoint, or in a run's newest checkpoint."""
    if not path.is_dir():
        raise UserError(f"there is no folder {path}; pass the folder of a run, a checkpoint or a buffer.")
    if (path / FILE_NAME).is_file():
        return Location(path, path.parent / "model")
    if (path / "buffer" / FILE_NAME).is_file():
        return Location(path / "buffer", path / "model")
    checkpoint = CheckpointStore(path).latest_good(
        verify=False, report=lambda sentence: print(f"pivot buffer: {printable(sentence)}", file=sys.stderr)
    )
    if checkpoint is None:
        raise UserError(f"{path} contains neither a buffer ({FILE_NAME}) nor a checkpoint yet.")
    if not (checkpoint.path / "buffer" / FILE_NAME).is_file():
        raise UserError(f"{checkpoint.path} contains no experience buffer; methods without replay have none.")
    return Location(checkpoint.path / "buffer", checkpoint.path / "model")


def check_replay(location: Location) -> None:
    """Refuse the empty buffer of a run whose method never fills it."""
    # RUN/checkpoints/step-N/buffer
    stored = location.folder.resolve().parents[2] / "config.json"
    try:
        method = read_json(stored, "").get("method")
    except DamagedFile:  # or none: a checkpoint may be anywhere
        return
    if isinstance(method, dict) and method.get("replay", True) is False:
        raise UserError(
            f"{stored.parent} was trained with {method.get('name')}, a method without replay: it has no experience "
            "buffer."
        )


def load_decoder(model: Path) -> Callable[[list[int]], str] | None:
    """A function from token ids to text, by the tokenizer in `model`; None if there is none."""
    if not (model / "tokenizer_config.json").is_file():
        return None
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model, local_files_only=True).decode
    except (OSError, ValueError) as damage:
        reason = str(damage).strip().splitlines()[0]
        print(
            printable(f"pivot buffer: showing token ids, since {model} has no tokenizer ({reason})"),
            file=sys.stderr,
        )
        return None


def describe(buffer: ExperienceBuffer, top: int, decode: Callable[[list[int]], str] | None) -> dict[str, Any]:
    """The overview as JSON values."""
    now = buffer.stats().newest_step or 0
    heaviest = heapq.nlargest(top, buffer.rows(), key=lambda row: (row.weight, row.step, row.prompt_id))
    oldest = heapq.nsmallest(top, buffer.rows(), key=lambda row: (row.step, row.prompt_id))
    newest = heapq.nlargest(top, buffer.rows(), key=lambda row: (row.step, row.prompt_id))
    return {
        "stats": asdict(buffer.stats()),
        "limits": {"responses_per_prompt": buffer.responses_per_prompt, "max_prompts": buffer.max_prompts},
        "oldest": [_row(row, now) for row in oldest],
        "newest": [_row(row, now) for row in newest],
        "top": [
            {**_row(row, now), "anchor": _anchor(buffer.candidates(row.prompt_id), now, decode)}
            for row in heaviest
            if row.weight > 0
        ],
    }


def _row(row: BufferRow, now: int) -> dict[str, Any]:
    derived = {"success_rate": row.success_rate, "weight": row.weight, "age": now - row.step}
    return {**asdict(row), **derived}


def _anchor(
    candidates: list[StoredResponse], now: int, decode: Callable[[list[int]], str] | None
) -> dict[str, Any]:
    """The response that Eq. 7 selects by the stored scores; without scores the newest one."""
    from pivot.method import num_stable, select_anchor

    stable = [c for c in candidates if c.entropy is not None]
    # Of two or three, entropy alone decides: their V was never needed.
    by_entropy = len(stable) == len(candidates) and num_stable(len(candidates)) == 1
    scored = [c for c in stable if c.dependency is not None or by_entropy]
    chosen = candidates[-1]
    if scored:
        import torch

        entropy_N, dependency_N = torch.tensor(
            [[c.entropy, c.dependency or 0.0] for c in scored], dtype=torch.float64
        ).T
        chosen = scored[select_anchor(entropy_N, dependency_N)]
    token_ids = chosen.token_ids.tolist()
    return {
        "text": None if decode is None else decode(token_ids),
        "token_ids": token_ids,
        "entropy": chosen.entropy,
        "dependency": chosen.dependency,
        "age": now - chosen.step,
        "scored": bool(scored),
    }


def _print(overview: dict[str, Any]) -> None:
    console, stats = Console(), overview["stats"]
    console.print(Text(printable(f"Experience buffer {overview['buffer']}"), style="bold"))
    summary = Table.grid(padding=(0, 2))
    for name, value in (
        ("rows", f"{stats['size']:,}"),
        ("eligible (0 < p-hat < 1)", f"{stats['eligible']:,}"),
        ("responses", f"{stats['responses']:,}"),
        ("memory", _size(stats["bytes"])),
        (
            "success rates of steps",
            f"{stats['oldest_step']} to {stats['newest_step']}" if stats["size"] else "-",
        ),
        ("draws of these rows", f"{stats['draws']:,}"),
    ):
        summary.add_row(name, value)
    console.print(summary)
    if not stats["size"]:
        console.print("The buffer is empty: no prompt has been solved yet.")
        return
    console.print(_histogram(stats["success_histogram"]))
    console.print(_rows("Oldest success rates", overview["oldest"]))
    console.print(_rows("Newest success rates", overview["newest"]))
    console.print(_rows("Most likely to be replayed", overview["top"]))
    for row in overview["top"]:
        _print_anchor(console, row)


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB" if num_bytes >= 1e6 else f"{num_bytes / 1e3:,.1f} kB"


def _histogram(counts: Iterable[int]) -> Table:
    counts = list(counts)
    table = Table(title="Rows by success rate", box=None, title_justify="left", show_header=False)
    for index, count in enumerate(counts):
        # A bin that is not empty shows at least one block.
        bar = "█" * (-(-count * _BAR // max(counts)))
        table.add_row(f"{index / 10:.1f} - {(index + 1) / 10:.1f}", f"{count:>9,}", bar)
    return table


def _rows(title: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("prompt", overflow="fold")
    for heading in ("p-hat", "weight", "responses", "age", "drawn"):
        table.add_column(heading, justify="right")
    for row in rows:
        rate = f"{row['num_correct']}/{row['num_sampled']}"
        cells = (
            rate,
            f"{row['weight']:.3f}",
            f"{row['num_stored']}",
            f"{row['age']}",
            f"{row['times_drawn']}",
        )
        table.add_row(Text(printable(row["prompt_id"])), *cells)
    return table


def _print_anchor(console: Console, row: dict[str, Any]) -> None:
    anchor = row["anchor"]
    how = "newest, not scored"
    if anchor["scored"]:
        visual = "not needed" if anchor["dependency"] is None else f"{anchor['dependency']:.3f}"
        how = f"H {anchor['entropy']:.3f}, V {visual}"
    console.print(Text(printable(f"{row['prompt_id']}: anchor of age {anchor['age']} ({how})"), style="bold"))
    text = str(anchor["token_ids"]) if anchor["text"] is None else anchor["text"]
    text = text if len(text) <= _ANCHOR else f"{text[:_ANCHOR]}... ({len(text):,} characters)"
    console.print(Text(printable(text)))
