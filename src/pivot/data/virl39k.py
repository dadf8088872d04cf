"""ViRL39K (VL-Rethinker): the paper's second training set, 38,870 rows.

TIGER-Lab's release has `question`, `answer` (always in a `\\boxed{}`), `image` (paths into `images.zip`),
`qid`, `category`, `source` and two pass rates; part of it has no image. PAPO's and VPPO's re-uploads have
`images`, `problem` and `answer`, with the images inside.
"""

from __future__ import annotations

from pivot.data.layout import Draft, Format, Layout, RowReader, boxed_content


def from_tiger_lab(row: RowReader) -> Draft:
    cells = row["image"]
    return Draft(
        question=row.text("question"),
        answer=boxed_content(row.text("answer")),
        images=[] if cells is None else row.images("image"),
        task=row.optional_text("category") or "virl39k",
    )


def from_reupload(row: RowReader) -> Draft:
    cells = row["images"]
    return Draft(
        question=row.text("problem"),
        answer=boxed_content(row.text("answer")),
        images=[] if cells is None else row.images("images"),
        task=row.optional_text("category") or "virl39k",
    )


FORMAT = Format(
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
        Layout(("question", "answer", "image", "qid"), from_tiger_lab, id_columns=("qid",)),
        Layout(("images", "problem", "answer"), from_reupload, id_columns=("id",)),
    ),
    expected={"train": 38870},
    matching="number, expression or letter",
    known_from="the data set's card (keys, boxed answers, 38,870), public code that reads it and its copies",
    tested_on="hand-made rows in both layouts",
    note="PAPO's and VPPO's copies hold the same rows with the images inside.",
)
