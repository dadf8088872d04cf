"""A user's own twenty rows in every format that is recognised, from the tiny world's generated pictures."""

from __future__ import annotations

import base64
import csv
import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pivot.tiny import procedural
from pivot.types import Prompt

NUM_ROWS = 20
TEXT_ROWS = (3, 11)
"""Rows without a picture."""


def picture(prompt: Prompt) -> bytes:
    buffer = BytesIO()
    prompt.images[0].open().save(buffer, "PNG")
    return buffer.getvalue()


def rows(folder: Path) -> list[dict[str, Any]]:
    """Question (without a mark), answer, path and bytes of each row; two have no picture."""
    made = []
    for i, prompt in enumerate(procedural.dataset("train", NUM_ROWS)):
        row = {"question": prompt.question.removeprefix("<image>"), "answer": prompt.answer}
        if i in TEXT_ROWS:
            made.append({**row, "path": None, "bytes": None})
            continue
        (folder / "pictures").mkdir(exist_ok=True)
        (folder / "pictures" / f"{i}.png").write_bytes(picture(prompt))
        made.append({**row, "path": f"pictures/{i}.png", "bytes": picture(prompt)})
    return made


def _jsonl(folder: Path, made: list[dict[str, Any]]) -> Path:
    path = folder / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    return path


def _parquet(folder: Path, made: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(made), folder / "mine.parquet")
    return folder / "mine.parquet"


def easyr1(folder: Path) -> Path:
    """problem, answer, images with bytes, and a mark."""
    return _parquet(
        folder,
        [
            {
                "images": [{"bytes": row["bytes"], "path": None}] if row["bytes"] else [],
                "problem": ("<image>" if row["bytes"] else "") + row["question"],
                "answer": row["answer"],
            }
            for row in rows(folder)
        ],
    )


def trl_messages(folder: Path) -> Path:
    """`messages` with parts; the answer is the box of the last assistant turn."""
    made = []
    for row in rows(folder):
        picture_parts = [{"type": "image", "image": row["path"]}] if row["path"] else []
        user = [*picture_parts, {"type": "text", "text": row["question"]}]
        reply = f"<think>Let me see.</think> \\boxed{{{row['answer']}}}"
        made.append(
            {
                "messages": [
                    {"role": "system", "content": "You look closely."},
                    {"role": "user", "content": user},
                    {"role": "assistant", "content": [{"type": "text", "text": reply}]},
                ]
            }
        )
    return _jsonl(folder, made)


def trl_prompt(folder: Path) -> Path:
    """`prompt` with image parts that take the row's `images`, and `solution`."""
    made = []
    for row in rows(folder):
        parts = [{"type": "image"}] if row["path"] else []
        made.append(
            {
                "prompt": [{"role": "user", "content": [*parts, {"type": "text", "text": row["question"]}]}],
                "images": [row["path"]] if row["path"] else None,
                "solution": f"<think>...</think><answer> {row['answer']} </answer>",
            }
        )
    return _jsonl(folder, made)


def sharegpt(folder: Path) -> Path:
    """`conversations` with from and value, a mark, base64 in `image`, and a `system` column."""
    made = []
    for row in rows(folder):
        mark = "<image>\n" if row["bytes"] else ""
        made.append(
            {
                "conversations": [
                    {"from": "human", "value": mark + row["question"]},
                    {"from": "gpt", "value": row["answer"]},
                ],
                "image": base64.b64encode(row["bytes"]).decode() if row["bytes"] else None,
                "system": "You look closely.",
            }
        )
    return _jsonl(folder, made)


def verl(folder: Path) -> Path:
    """verl's parquet columns."""
    made = []
    for i, row in enumerate(rows(folder)):
        mark = "<image>" if row["bytes"] else ""
        made.append(
            {
                "data_source": "own/geometry",
                "prompt": [{"role": "user", "content": mark + row["question"]}],
                "images": [{"bytes": row["bytes"]}] if row["bytes"] else [],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": row["answer"]},
                "extra_info": {"split": "train", "index": i, "answer": row["answer"]},
            }
        )
    return _parquet(folder, made)


def table(folder: Path) -> Path:
    """A CSV file with a list in a cell and columns of common names."""
    path = folder / "mine.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["question", "answer", "image"])
        writer.writerows(
            [row["question"], row["answer"], json.dumps([row["path"]]) if row["path"] else ""]
            for row in rows(folder)
        )
    return path


FORMATS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "easyr1": (easyr1, "plain columns: question from problem, answer from answer, images from images"),
    "trl-messages": (
        trl_messages,
        "TRL messages: question from messages, answer from the last assistant turn, images from its parts",
    ),
    "trl-prompt": (trl_prompt, "TRL prompts: question from prompt, answer from solution, images from images"),
    "sharegpt": (
        sharegpt,
        "ShareGPT conversations: question from conversations, answer from the last assistant turn, images from image",
    ),
    "verl": (
        verl,
        "verl prompts: question from prompt, answer from reward_model.ground_truth, images from images",
    ),
    "csv": (table, "plain columns: question from question, answer from answer, images from image"),
}
"""Name -> what writes the file, and what `pivot data` says about it."""
