"""We-Math testmini: 1,740 rows, 525 problems with their steps, whole for the four-dimensional metric."""

from __future__ import annotations

import re

from pivot.data import BadRow, Draft, Layout, RowReader
from pivot.evaluate.benchmarks.benchmark import Benchmark
from pivot.evaluate.benchmarks.choices import LETTERS, lettered
from pivot.evaluate.benchmarks.matching import LETTER

_NEXT_OPTION = re.compile(r"\s*[;；]?\s*(?=\b[A-H][.．、])")
_LABEL = re.compile(r"^([A-H])[.．、]\s*")
_STEPS = {"2steps_multi": "two-step", "3steps_multi": "three-step"}


def draft(row: RowReader) -> Draft:
    options = split_options(row.text("option"))
    answer = row.text("answer").strip()
    if len(answer) != 1 or answer not in LETTERS[: len(options)]:
        raise BadRow(f"answer is no letter of the {len(options)} options ({answer[:20]!r})")
    return Draft(
        question=f"{row.text('question').strip()}\n{lettered(options)}",
        answer=answer,
        images=[row["image_path"]],
        task=_STEPS.get(row.text("key"), "one-step"),
        columns={"matching": LETTER, "choices": options},
    )


def split_options(option: str) -> list[str]:
    """`A. 3, 5  ;B. 4, 5; C. ...` -> the texts, where the letters run A, B, C, ..."""
    parts = [part.strip() for part in _NEXT_OPTION.split(option.strip()) if part.strip()]
    texts: list[str] = []
    for part in parts:
        label = _LABEL.match(part)
        if label and label[1] == LETTERS[len(texts)]:
            texts.append(part[label.end() :].rstrip(" ;；"))
        elif texts:
            texts[-1] = f"{texts[-1]} {part}"
    if len(texts) < 2:
        raise BadRow(f"option is no list of lettered options ({option[:40]!r})")
    return texts


BENCHMARK = Benchmark(
    name="we-math",
    title="We-Math testmini",
    hub_id="We-Math/We-Math",
    split="testmini",
    layouts=(
        Layout(("ID", "key", "question", "option", "answer", "image_path"), draft, id_columns=("ID", "key")),
    ),
    expected={"testmini": 1740},
    matching="letter (with or without text)",
    papo_split="We_Math",
    papo_rows=1740,
    known_from="the project's testmini.json (We-Math/We-Math); 525 problems from its evaluation script",
    tested_on="24 real rows with images: 4 two-step and 3 three-step problems, whole",
)
