"""The PAPO-Eval bundle: all of PAPO's benchmarks in one hub set, as ShareGPT messages with image files.

Each split has `messages` (a user's and an assistant's turn), `images` (paths as ./data/images/SPLIT/x.png
into a zip file of the same repository) and `id`. The user's turn ends with the template's instruction, which
is taken off here: the one standard template puts it back.
"""

from __future__ import annotations

import re

from pivot.data import BadRow, Draft, Layout, RowReader
from pivot.evaluate.benchmarks.choices import options_in
from pivot.evaluate.benchmarks.matching import kind_of

HUB_ID = "PAPO-Galaxy/PAPO_eval"
_ARCHIVES = {"We_Math": "We-Math_We-Math_images.zip", "PAPO_MMK12": "PAPO_MMK12_test_images.zip"}
_INSTRUCTION = re.compile(
    r"\s*You first think through the reasoning process as an internal monologue.*\Z", re.DOTALL
)


def files(split: str) -> tuple[str, ...]:
    """The rows of a split and the archive with its images."""
    return f"data/{split}-*.parquet", _ARCHIVES.get(split, f"{split}_images.zip")


def draft(row: RowReader) -> Draft:
    question = _INSTRUCTION.sub("", _turn(row, "user", "human"))
    answer = _turn(row, "assistant", "gpt").strip()
    if not answer:
        raise BadRow("answer missing")
    return Draft(
        question=question,
        answer=answer,
        images=row.images("images") if row["images"] is not None else [],
        columns={"matching": kind_of(answer), "choices": options_in(question)},
    )


def _turn(row: RowReader, *roles: str) -> str:
    """The text of the first turn in one of these roles, in either spelling of ShareGPT."""
    turns = row["messages"]
    for turn in turns if isinstance(turns, list) else []:
        if isinstance(turn, dict) and (turn.get("role") or turn.get("from")) in roles:
            text = turn.get("content", turn.get("value"))
            if isinstance(text, str):
                return text
    raise BadRow(f"messages have no {roles[0]} turn")


LAYOUT = Layout(("messages", "images"), draft, id_columns=("id",))
