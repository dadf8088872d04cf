"""Geometry3K (Lu et al. 2021): the paper's first training set (2,101 problems) and its test split (601).

`hiyouga/geometry3k` has `images`, `problem` (begins with `<image>`) and `answer` (the right choice's text);
the original InterGPS release is a folder a problem, whose answer is a letter.
"""

from __future__ import annotations

from pivot.data.layout import BadRow, Draft, Format, Layout, RowReader

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def from_hub(row: RowReader) -> Draft:
    return Draft(row.text("problem"), row.text("answer"), row.images("images"), task="geometry3k")


def from_intergps(row: RowReader) -> Draft:
    """`annotat_text` is what hiyouga's `problem` was made of; `problem_text` spells points apart (`A B`)."""
    letter, choices = row.text("answer"), row.texts("choices")
    position = LETTERS.find(letter) if len(letter) == 1 else -1
    if not 0 <= position < len(choices):
        raise BadRow(f"answer is no letter of the {len(choices)} choices ({letter[:20]!r})")
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


FORMAT = Format(
    name="geometry3k",
    hub_id="hiyouga/geometry3k",
    split="train",
    layouts=(
        Layout(("images", "problem", "answer"), from_hub, id_columns=("id",)),
        Layout(("problem_text", "choices", "answer", "folder"), from_intergps, id_columns=("id",)),
    ),
    expected={"train": 2101, "validation": 300, "test": 601},
    matching="number or expression",
    known_from="FormalGeo's copy (RuRuo0/Datasets), folders of lupantech/InterGPS, EasyR1's use of the hub set",
    tested_on="64 real training rows, 32 real test rows, 5 real InterGPS folders",
)
