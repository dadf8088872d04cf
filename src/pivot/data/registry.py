"""The training sets known by name, and what a name, hub id or path refers to.

To add a data set, write a function from a row to a `Draft`, a `Format` with its columns, and a line in `TRAINING_SETS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from pivot.data.formats import (
    BadRow,
    DataSpec,
    Draft,
    Format,
    Layout,
    RowReader,
    boxed_content,
)
from pivot.data.memory import MEMORY
from pivot.data.sources import SUFFIXES, split_of
from pivot.errors import UserError, did_you_mean

CUSTOM = "custom"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _geometry3k(row: RowReader) -> Draft:
    """`hiyouga/geometry3k`: the answer is the text of the correct choice."""
    return Draft(row.text("problem"), row.text("answer"), row.images("images"), task="geometry3k")


def _geometry3k_intergps(row: RowReader) -> Draft:
    """The original release, one folder per problem: the answer is a letter.

    `annotat_text` is the source of hiyouga's `problem`; `problem_text` separates the letters of points (`A B`).
    """
    letter, choices = row.text("answer"), row.texts("choices")
    position = _LETTERS.find(letter) if len(letter) == 1 else -1
    if not 0 <= position < len(choices):
        raise BadRow(f"answer is not the letter of one of the {len(choices)} choices ({letter[:20]!r})")
    diagram = "img_diagram_point.png" if row.spec.point_overlay else "img_diagram.png"
    question = row.optional_text("annotat_text") or row.text("problem_text")
    goals = row.texts("problem_type_goal")
    return Draft(
        question=f"<image>{question}",
        answer=choices[position],
        images=[f"{row['folder']}/{diagram}"],
        task="geometry3k",
        columns={"choices": choices, "letter": letter, "goal": goals[0] if goals else ""},
    )


GEOMETRY3K = Format(
    name="geometry3k",
    hub_id="hiyouga/geometry3k",
    split="train",
    layouts=(
        Layout(("images", "problem", "answer"), _geometry3k, id_columns=("id",)),
        Layout(("problem_text", "choices", "answer", "folder"), _geometry3k_intergps, id_columns=("id",)),
    ),
    expected={"train": 2101, "validation": 300, "test": 601},
    matching="number or expression",
    known_from="FormalGeo's copy (RuRuo0/Datasets), folders of lupantech/InterGPS, EasyR1's use of the hub set",
    tested_on="64 real training rows, 32 real test rows, 5 real InterGPS folders",
)
"""Geometry3K (Lu et al. 2021): the paper's first training set (2,101 problems) and its test split (601)."""


def _virl39k(question: str, image: str) -> Callable[[RowReader], Draft]:
    """Rows of TIGER-Lab's release or of a copy, which names its columns differently; some rows have no image."""

    def draft(row: RowReader) -> Draft:
        return Draft(
            question=row.text(question),
            answer=boxed_content(row.text("answer")),
            images=[] if row[image] is None else row.images(image),
            task=row.optional_text("category") or "virl39k",
        )

    return draft


VIRL39K = Format(
    name="virl39k",
    hub_id="TIGER-Lab/ViRL39K",
    split="train",
    files=("39Krelease.parquet", "images.zip", "data/train-*.parquet"),
    copies=(
        "PAPOGalaxy/PAPO_ViRL39K_train",
        "PAPO-Galaxy/PAPO_ViRL39K_train",
        "chamber111/VPPO_ViRL39K_train",
    ),
    layouts=(
        Layout(("question", "answer", "image", "qid"), _virl39k("question", "image"), id_columns=("qid",)),
        Layout(("images", "problem", "answer"), _virl39k("problem", "images"), id_columns=("id",)),
    ),
    expected={"train": 38870},
    matching="number, expression or letter",
    known_from="the data set's card (keys, boxed answers, 38,870), public code that reads it and its copies",
    tested_on="hand-made rows in both layouts",
    note="PAPO's and VPPO's copies hold the same rows with the images inside.",
)
"""ViRL39K (VL-Rethinker): the paper's second training set, with boxed answers."""

TRAINING_SETS: dict[str, Format] = {known.name: known for known in (GEOMETRY3K, VIRL39K)}


def resolve(spec: DataSpec, known: Iterable[Format] = ()) -> tuple[Format, DataSpec]:
    """The format that a name, hub id or local path refers to, and the spec with its path."""
    formats = {**TRAINING_SETS, **{f.name: f for f in known}}
    if spec.name in formats:
        return formats[spec.name], spec
    for candidate in formats.values():
        if spec.name == candidate.hub_id or spec.name in candidate.copies:
            return candidate, spec
    if spec.rows is not None:
        return _custom(MEMORY, spec), spec
    if spec.path is not None and spec.name != CUSTOM and looks_like_path(spec.name):
        raise UserError(
            f"{spec.name} names a file or folder, and data.path={spec.path} another; leave one of them out."
        )
    if looks_like_path(spec.name):
        spec = replace(spec, name=CUSTOM, path=spec.name)
    if spec.name == CUSTOM:
        if spec.path is None:
            raise UserError(
                "custom needs --set data.path=FILE: a parquet, Arrow, JSONL, JSON or CSV file, or a folder of them."
            )
        return _custom(_set_name(Path(spec.path).expanduser()), spec), spec
    if spec.name.count("/") == 1:
        return _custom(spec.name.replace("/", "--"), spec), spec
    names = ["tiny", *formats, CUSTOM]
    raise UserError(
        f"unknown data set {spec.name!r}.{did_you_mean(spec.name, names)} Known sets: {', '.join(names)}. "
        "An owner/name of the hub or a local path also works."
    )


def looks_like_path(name: str) -> bool:
    """Whether the name of a set is that of a file or folder, there or not."""
    return name.startswith((".", "/", "~")) or Path(name).suffix in SUFFIXES or Path(name).exists()


def _set_name(path: Path) -> str:
    """The prefix of the ids: the file's name, or its folder's if the file is named after a split."""
    return path.resolve().parent.name if split_of(path) else path.stem


def _custom(name: str, spec: DataSpec) -> Format:
    """A set that is recognised by its columns; InterGPS's folders are known without a name too."""
    folder = Path(spec.path).expanduser() if spec.path else None
    is_intergps = (
        folder is not None and folder.is_dir() and next(folder.glob("**/data.json"), None) is not None
    )
    return Format(
        name=name, hub_id=spec.name, split="train", layouts=GEOMETRY3K.layouts[1:] if is_intergps else ()
    )
