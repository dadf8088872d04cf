"""Which columns of a user's own rows are used: names that the user gave, else the usual ones of the field.

| format | question | answer |
|---|---|---|
| plain columns, EasyR1 | `problem`, `question`, ... as text | `answer`, `solution`, `ground_truth` |
| TRL | `messages` or `prompt`, a list of turns | the same columns, else the last assistant turn |
| ShareGPT | `conversations`, a list of turns | the same |
| verl | `prompt`, a list of turns | `reward_model.ground_truth` |
"""

from __future__ import annotations

from typing import Any

from pivot.data.chat import MAX_ANSWER, final_answer, read_conversation
from pivot.data.formats import (
    BadRow,
    DataSpec,
    Draft,
    Layout,
    RowReader,
    boxed_content,
    has_column,
    missing_columns,
)
from pivot.data.template import IMAGE_MARK
from pivot.errors import UserError

QUESTIONS = ("problem", "messages", "conversations", "prompt", "question", "query", "instruction")
ANSWERS = ("reward_model.ground_truth", "answer", "solution", "ground_truth")
IMAGES = ("images", "image", "image_path", "file_name")
"""Usual names, in order of preference."""
SOLUTION = "solution"
"""A column whose text ends in the answer."""
_CHATS = {
    "messages": "TRL messages",
    "conversations": "ShareGPT conversations",
    "prompt": "TRL prompts",
}


def recognise(name: str, columns: tuple[str, ...], first: dict[str, Any], spec: DataSpec) -> Layout:
    """The layout of rows with these columns; `first` is one of them. A UserError names what is missing."""
    question = _chosen(name, columns, spec.problem_column, "problem", QUESTIONS)
    answer = _chosen(name, columns, spec.answer_column, "answer", ANSWERS)
    image = "" if spec.image_column == "" else _chosen(name, columns, spec.image_column, "images", IMAGES)
    if question is None:
        raise UserError(missing_columns(name, ("problem",), columns))
    is_chat = isinstance(RowReader(first, spec)[question], list)
    if answer is None and "completion" in columns:
        answer = "completion"
    if answer is None and not is_chat:
        raise UserError(missing_columns(name, ("answer",), columns))
    for given in (spec.id_column, spec.category_column):
        if given and not has_column(columns, given):
            raise UserError(missing_columns(name, (given,), columns))
    category = spec.category_column or ("data_source" if "data_source" in columns else "")

    def draft(row: RowReader) -> Draft:
        return _draft(row, question, answer, image or "", category)

    return Layout(
        (),
        draft,
        id_columns=(spec.id_column or "id",),
        described=_described(question, answer, image or "", is_chat, columns),
    )


def _chosen(
    name: str, columns: tuple[str, ...], given: str | None, default: str, usual: tuple[str, ...]
) -> str | None:
    """The user's column, which must exist; else the first usual one. The default's own name counts as not given."""
    if given is not None and given != default:
        if not has_column(columns, given):
            raise UserError(missing_columns(name, (given,), columns))
        return given
    return next((column for column in usual if has_column(columns, column)), None)


def _draft(row: RowReader, question: str, answer: str | None, image: str, category: str) -> Draft:
    cells = _cells(row, image)
    task = row.optional_text(category) if category else ""
    if not isinstance(row[question], list):
        if answer is None:
            raise BadRow(f"{question} is not a list of turns")
        text = row.text(question)
        images = _expected(text, cells)
        return Draft(text, _answer(row, answer), images, task, row.optional_text("system"))
    chat = read_conversation(row[question], question, cells)
    truth = _from_text(chat.reply, question) if answer is None else _answer(row, answer)
    images = _expected(chat.question, chat.images)
    return Draft(chat.question, truth, images, task, chat.system or row.optional_text("system"))


def _expected(question: str, cells: list[Any]) -> list[Any]:
    """The images; missing ones if there are none but the question has marks."""
    return cells or [None] * question.count(IMAGE_MARK)


def _cells(row: RowReader, image: str) -> list[Any]:
    """The row's images; none if the column is empty, which makes it a row of text."""
    value = row[image] if image else None
    if value is None or value == "":
        return []
    return value if isinstance(value, list) else [value]


def _answer(row: RowReader, column: str) -> str:
    value = row[column]
    if column == "completion" and isinstance(value, list):
        value = read_conversation([{"role": "user", "content": "-"}, *value], column, []).reply
        return _from_text(value, column)
    if column in (SOLUTION, "completion"):
        return _from_text(row.text(column), column)
    return boxed_content(row.text(column))


def _from_text(text: str | None, column: str) -> str:
    if not text or not text.strip():
        raise BadRow(f"{column} has no assistant turn with the answer, and no other column has one")
    found = final_answer(text)
    if not found:
        raise BadRow(f"{column} has no boxed or tagged answer (more than {MAX_ANSWER} characters of text)")
    return found


def _described(question: str, answer: str | None, image: str, is_chat: bool, columns: tuple[str, ...]) -> str:
    if is_chat and has_column(columns, "reward_model"):
        kind = "verl prompts"
    elif is_chat:
        kind = _CHATS.get(question, "conversations")
    else:
        kind = "plain columns"
    source = "the last assistant turn" if answer is None else answer
    images = image or ("its parts" if is_chat else "no column")
    return f"{kind}: question from {question}, answer from {source}, images from {images}"
