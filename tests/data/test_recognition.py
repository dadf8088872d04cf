"""Rows of a user's own: every recognised format, where question, answer and images come from, and what is refused."""

import base64
import json
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pytest
from chat_rows import FORMATS, NUM_ROWS, TEXT_ROWS, picture
from PIL import Image

from pivot.data import DataSet, DataSpec, load
from pivot.data.chat import final_answer
from pivot.data.images import open_rgb
from pivot.data.sources import named_splits
from pivot.errors import UserError
from pivot.tiny import procedural


def png(colour: str = "red", size: tuple[int, int] = (30, 20)) -> bytes:
    buffer = BytesIO()
    Image.new("RGB", size, colour).save(buffer, "PNG")
    return buffer.getvalue()


def load_rows(folder: Path, *rows: dict, **settings: object) -> DataSet:
    path = folder / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load(DataSpec(str(path), **settings))


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_prompts(tmp_path: Path, name: str) -> None:
    write, recognised = FORMATS[name]
    data = load(DataSpec(str(write(tmp_path))))
    assert data.recognised == recognised
    assert (len(data.prompts), data.skipped) == (NUM_ROWS, [])
    assert "2 of them without an image" in data.summary()
    for i, (prompt, made) in enumerate(zip(data.prompts, procedural.dataset("train", NUM_ROWS), strict=True)):
        assert prompt.answer == made.answer
        assert prompt.question.replace("\n", "") == made.question.removeprefix("<image>" * (i in TEXT_ROWS))
        assert [open_rgb(source).tobytes() for source in prompt.images] == (
            [] if i in TEXT_ROWS else [Image.open(BytesIO(picture(made))).convert("RGB").tobytes()]
        )
        has_system = name in ("trl-messages", "sharegpt")
        assert prompt.system == ("You look closely." if has_system else "")
    assert len({prompt.id for prompt in data.prompts}) == NUM_ROWS


def turns(*contents: object, roles: tuple[str, ...] = ("user", "assistant")) -> dict:
    return {"messages": [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (turns("a", "b", roles=("user", "user")), "messages does not have exactly one user turn (2 of 2 turns)"),
        (turns("b", roles=("assistant",)), "messages has an assistant turn before the user's"),
        (turns("b", roles=("tool",)), "messages has a turn of unknown role ('tool')"),
        (turns("a"), "messages has no assistant turn with the answer"),
        (turns("a", "x" * 201), "messages has no boxed or tagged answer"),
        (turns("  ", "5"), "messages has no text in the user's turn"),
        (turns([{"type": "video", "video": "a.mp4"}], "5"), "messages has a part that is neither text nor an image"),
        (turns({"text": "a"}, "5"), "messages has a turn without text"),
        (turns("a\ud800", "5"), "messages is not valid Unicode"),
        ({"messages": "a"}, "messages is not a list of turns"),
        ({"messages": []}, "messages missing"),
        ({"messages": ["a"]}, "messages has a turn that is not an object"),
        (turns("<image>a", "5"), "image missing"),
        (turns([{"type": "image"}, {"type": "text", "text": "a"}], "5"), "image missing"),
    ],
)  # fmt: skip
def test_conversations_that_cannot_be_used_are_named(tmp_path: Path, row: dict, reason: str) -> None:
    good = turns("1 + 1?", "\\boxed{2}")
    data = load_rows(tmp_path, good, row)
    assert [prompt.answer for prompt in data.prompts] == ["2"]
    assert [skipped.reason[: len(reason)] for skipped in data.skipped] == [reason]


def test_images_of_parts_are_in_their_order(tmp_path: Path) -> None:
    uri = f"data:image/png;base64,{base64.b64encode(png('red')).decode()}"
    (tmp_path / "green.png").write_bytes(png("green"))
    (tmp_path / "blue.png").write_bytes(png("blue"))
    parts = [
        {"type": "text", "text": "Compare "},
        {"type": "image_url", "image_url": {"url": uri}},
        {"type": "text", "text": " with "},
        {"type": "image"},
        {"type": "text", "text": " and <image>."},
    ]
    row = {**turns(parts, "5"), "images": ["green.png", "blue.png"]}
    (prompt,) = load_rows(tmp_path, row).prompts
    assert prompt.question == "Compare <image> with <image> and <image>."
    colours = [open_rgb(source).getpixel((0, 0)) for source in prompt.images]
    assert colours == [(255, 0, 0), (0, 128, 0), (0, 0, 255)]
    (skipped,) = load_rows(tmp_path, {**row, "images": ["green.png"] * 3}).skipped
    assert skipped.reason == "marks do not match images (3 <image> marks, 4 images)"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so \\boxed{1} or \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{3} and an open \\boxed{4", "3"),
        ("<think>a</think><answer> 7 cm </answer>", "7 cm"),
        (" 12 ", "12"),
        ("x" * 200, "x" * 200),
        ("x" * 201, None),
    ],
)
def test_the_answer_in_a_solution(text: str, answer: str | None) -> None:
    assert final_answer(text) == answer


def test_nested_columns_and_names_of_the_users_own(tmp_path: Path) -> None:
    row = {
        "q": {"text": "Find x.", "alt": ["", "y"]},
        "truth": {"value": 7.0},
        "meta": {"id": "a7", "kind": "k"},
    }
    settings = {"problem_column": "q.text", "answer_column": "truth.value", "id_column": "meta.id"}
    (prompt,) = load_rows(tmp_path, row, **settings, category_column="meta.kind").prompts
    assert (prompt.id, prompt.question, prompt.answer, prompt.task) == ("mine/train/a7", "Find x.", "7", "k")
    (prompt,) = load_rows(tmp_path, row, **{**settings, "problem_column": "q.alt.1"}).prompts
    assert prompt.question == "y"
    with pytest.raises(UserError, match=r"column 'truht.value' missing.*Did you mean 'truth'"):
        load_rows(tmp_path, row, **{**settings, "answer_column": "truht.value"})
    with pytest.raises(UserError, match="column 'answer' missing"):
        load_rows(tmp_path, row, problem_column="q.text")


def test_image_cells_of_every_kind(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "a.png").write_bytes(png())
    plain = base64.b64encode(png()).decode()
    jpeg = BytesIO()
    Image.new("RGB", (30, 20)).save(jpeg, "JPEG")
    cells = ["figures/a.png", plain, f"data:image/png;base64,{plain}", {"image": "file://figures/a.png"},
             {"base64": plain}, {"url": "figures/a.png"}, base64.b64encode(jpeg.getvalue()).decode()]  # fmt: skip
    assert cells[-1].startswith("/9j/")  # looks like an absolute path
    data = load_rows(tmp_path, *({"problem": "?", "answer": "1", "image": cell} for cell in cells))
    assert data.skipped == []
    assert [open_rgb(p.images[0]).size for p in data.prompts] == [(30, 20)] * len(cells)


def test_paths_outside_the_folder_need_a_setting(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "rows").mkdir()
    (tmp_path / "elsewhere" / "a.png").write_bytes(png())
    absolute = {"problem": "?", "answer": "1", "image": str(tmp_path / "elsewhere" / "a.png")}
    relative = {**absolute, "image": "a.png"}
    (skipped,) = load_rows(tmp_path / "rows", absolute).skipped
    assert skipped.reason.startswith(
        "image path is absolute, allow it with --set data.allow_absolute_paths=true"
    )
    assert len(load_rows(tmp_path / "rows", absolute, allow_absolute_paths=True).prompts) == 1
    assert len(load_rows(tmp_path / "rows", relative, image_root=str(tmp_path / "elsewhere")).prompts) == 1
    with pytest.raises(UserError, match="the image folder /nowhere"):
        load_rows(tmp_path / "rows", relative, image_root="/nowhere")
    (skipped,) = load_rows(tmp_path, {**absolute, "image": "https://example.org/a.png"}).skipped
    assert skipped.reason.startswith("image is a URL, allow downloads with --set data.allow_urls=true")
    (skipped,) = load_rows(
        tmp_path, {**absolute, "image": "http://127.0.0.1:1/a.png"}, allow_urls=True
    ).skipped
    assert "the host is not a public address" in skipped.reason


def test_a_set_without_images_is_text(tmp_path: Path) -> None:
    rows = [{"question": f"{i} + 1?", "answer": i + 1} for i in range(3)]
    data = load_rows(tmp_path, *rows)
    assert [prompt.images for prompt in data.prompts] == [()] * 3
    assert (
        data.recognised == "plain columns: question from question, answer from answer, images from no column"
    )


def test_a_csv_line_with_too_few_cells_is_a_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text('problem,answer\n"1, 2?",3\nonly one\n4?,5,6\n')
    data = load(DataSpec(str(path)))
    assert [(p.question, p.answer) for p in data.prompts] == [("1, 2?", "3")]
    assert {row.reason for row in data.skipped} == {"line does not have as many cells as the header"}


def test_the_papers_instruction_is_not_repeated(tmp_path: Path) -> None:
    from pivot.data.template import INSTRUCTION, user_text

    (prompt,) = load_rows(tmp_path, turns(f"Find x.\n\n{INSTRUCTION}", "5")).prompts
    assert user_text(prompt.question) == f"Find x.\n\n{INSTRUCTION}"


def test_a_saved_dataset_dict_is_read_by_split(tmp_path: Path) -> None:
    for split, num_rows in (("train", 3), ("validation", 2)):
        (tmp_path / split).mkdir()
        table = pa.table({"problem": [f"{split} {i}?" for i in range(num_rows)], "answer": ["1"] * num_rows})
        with pa.ipc.new_stream(tmp_path / split / "data-00000-of-00001.arrow", table.schema) as stream:
            stream.write_table(table)
        (tmp_path / split / "state.json").write_text("{}")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "validation"]}')
    assert named_splits(tmp_path) == {"train", "validation"}
    assert len(load(DataSpec(str(tmp_path), split="train")).prompts) == 3
    assert len(load(DataSpec(str(tmp_path), split="validation")).prompts) == 2
    assert named_splits(tmp_path / "train") == set()
    limited = load(DataSpec(str(tmp_path / "train"), limit=2))
    assert limited.warnings == (f"only the first 2 of 3 rows of {tmp_path.name}/train are read.",)


def test_real_sets_are_recognised_by_their_path_alone(shared_data: Path) -> None:
    for path, num_rows in (
        ("geometry3k/train.parquet", 64),
        ("geometry3k_intergps", 5),
        ("mmk12/test.parquet", 24),
    ):
        named = "mmk12" if path.startswith("mmk12") else "geometry3k"
        data = load(DataSpec(str(shared_data / path)))
        assert (len(data.prompts), data.skipped) == (num_rows, []), named
        assert all(prompt.images and prompt.answer for prompt in data.prompts)
