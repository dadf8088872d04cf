"""Real rows of the shared samples, stable ids, and custom files."""

import json
import random
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pivot.data import DataSpec, load
from pivot.data.images import open_rgb
from pivot.errors import UserError

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
needs_samples = pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data")


def png(colour: int = 0, size: tuple[int, int] = (30, 20)) -> bytes:
    buffer = BytesIO()
    Image.new("L", size, colour).save(buffer, "PNG")
    return buffer.getvalue()


def cell(colour: int = 0) -> dict:
    return {"bytes": png(colour), "path": None}


def write_parquet(path: Path, rows: list[dict]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def write_jsonl(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@needs_samples
@pytest.mark.parametrize(("split", "rows", "expected"), [("train", 64, "2,101"), ("test", 32, "601")])
def test_real_geometry3k_rows(split: str, rows: int, expected: str) -> None:
    data = load(DataSpec("geometry3k", path=str(SHARED / "geometry3k" / f"{split}.parquet")))
    assert (data.name, data.split, len(data.prompts), data.skipped) == ("geometry3k", split, rows, [])
    assert data.warnings[0].startswith(f"geometry3k/{split} has {rows} rows here, {expected} are expected")
    raw = pq.read_table(SHARED / "geometry3k" / f"{split}.parquet").to_pylist()
    for prompt, row in zip(data.prompts, raw, strict=True):
        assert prompt.id == f"geometry3k/{split}/{row['id']}"
        assert (prompt.question, prompt.answer) == (row["problem"], row["answer"])
        assert open_rgb(prompt.images[0]).mode == "RGB"
        assert "images" not in prompt.columns


@needs_samples
def test_a_folder_is_read_by_split() -> None:
    folder = str(SHARED / "geometry3k")
    assert {p.id for p in load(DataSpec("geometry3k", path=folder, split="test")).prompts} == {
        p.id for p in load(DataSpec("geometry3k", path=f"{folder}/test.parquet")).prompts
    }
    with pytest.raises(
        UserError, match=r"has no file for split 'validation' but has test.parquet, train.parquet"
    ):
        load(DataSpec("geometry3k", path=folder, split="validation"))


@needs_samples
def test_real_intergps_folders() -> None:
    folder = str(SHARED / "geometry3k_intergps")
    plain = load(DataSpec("geometry3k", path=folder)).prompts
    assert [p.id for p in plain] == [f"geometry3k/train/{number}" for number in (11, 15, 16, 17, 19)]
    with pytest.raises(UserError, match=r"has no split 'test': its folders are train"):
        load(DataSpec("geometry3k", path=folder, split="test"))
    by_id = {p.id.rsplit("/")[-1]: p for p in plain}
    assert by_id["17"].answer == "120"
    assert by_id["17"].columns["letter"] == "D"
    assert by_id["17"].question.startswith("<image>parallelogram MNPQ with $m \\angle M=10 x$")
    overlaid = load(DataSpec("geometry3k", path=folder, point_overlay=True)).prompts
    for one, other in zip(plain, overlaid, strict=True):
        assert one.id == other.id
        assert open_rgb(one.images[0]).tobytes() != open_rgb(other.images[0]).tobytes()


VIRL_ROW = {
    "question": "<image>Find the angle.",
    "answer": "\\boxed{\\frac{1}{2}}",
    "image": ["images/a.png"],
    "qid": "q-1",
    "category": "Spatial Reasoning",
    "source": "MMK12",
    "PassRate_32BTrained": 0.5,
    "PassRate_7BBase": -1.0,
}


def test_virl39k_as_tiger_lab_has_it(tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        archive.writestr("images/a.png", png(7))
    text_only = {**VIRL_ROW, "question": "1 + 1?", "answer": "\\boxed{2}", "image": [], "qid": "q-2"}
    write_parquet(tmp_path / "39Krelease.parquet", [VIRL_ROW, text_only])
    data = load(DataSpec("virl39k", path=str(tmp_path)))
    first, second = data.prompts
    assert (first.id, first.answer, first.task) == ("virl39k/train/q-1", "\\frac{1}{2}", "Spatial Reasoning")
    assert first.columns["PassRate_32BTrained"] == 0.5
    assert open_rgb(first.images[0]).getpixel((0, 0)) == (7, 7, 7)
    assert (second.question, second.answer, second.images) == ("1 + 1?", "2", ())


def test_virl39k_reuploads_have_images_inside(tmp_path: Path) -> None:
    rows = [{"images": [cell(1), cell(2)], "problem": "<image> or <image>?", "answer": "A"}]
    path = write_parquet(tmp_path / "train-00000-of-00001.parquet", rows)
    (prompt,) = load(DataSpec("virl39k", path=str(path))).prompts
    assert prompt.answer == "A"
    assert [open_rgb(image).getpixel((0, 0))[0] for image in prompt.images] == [1, 2]


def test_ids_without_a_column_hang_on_content_not_on_order(tmp_path: Path) -> None:
    rows = [{"images": [cell(i % 3)], "problem": f"<image>Find x{i}.", "answer": str(i)} for i in range(12)]
    rows.append({**rows[4], "images": [cell(9)]})
    rows.append(rows[5])
    there = load(DataSpec("custom", path=str(write_parquet(tmp_path / "mine.parquet", rows))))
    shuffled = rows[:]
    random.Random(1).shuffle(shuffled)
    (tmp_path / "again").mkdir()
    back = load(DataSpec("custom", path=str(write_parquet(tmp_path / "again" / "mine.parquet", shuffled))))
    assert {p.id: p.answer for p in there.prompts} == {p.id: p.answer for p in back.prompts}
    assert len({p.id for p in there.prompts}) == 14
    assert there.num_duplicates == back.num_duplicates == 1
    assert sum(p.id.endswith("#2") for p in there.prompts) == 1
    assert all(p.id.startswith("mine/train/") for p in there.prompts)


def test_repeated_own_ids_are_numbered_or_refused(tmp_path: Path) -> None:
    rows = [{"problem": f"Find {i}.", "answer": "1", "id": "same"} for i in range(3)]
    spec = DataSpec("custom", path=str(write_jsonl(tmp_path / "a.jsonl", rows)), image_column="")
    data = load(spec)
    assert [p.id for p in data.prompts] == ["a/train/same", "a/train/same#2", "a/train/same#3"]
    assert "2 repeated ids are numbered" in data.summary()
    with pytest.raises(UserError, match=r"2 rows of a/train repeat an id \(a/train/same, a/train/same\)"):
        load(DataSpec("custom", path=spec.path, image_column="", bad_rows="refuse"))


def test_custom_columns_and_formats_give_the_same_prompts(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "a.png").write_bytes(png(3))
    rows = [{"q": "What?", "truth": 4, "pic": "figures/a.png", "key": "k1", "topic": "angles"}]
    write_jsonl(tmp_path / "mine.jsonl", rows)
    (tmp_path / "mine.json").write_text(json.dumps(rows))
    write_parquet(tmp_path / "mine.parquet", rows)
    table = pa.Table.from_pylist(rows)
    with (
        pa.OSFile(str(tmp_path / "mine.arrow"), "wb") as file,
        pa.ipc.new_stream(file, table.schema) as writer,
    ):
        writer.write_table(table)
    for suffix in ("jsonl", "json", "parquet", "arrow"):
        spec = DataSpec(
            "custom",
            path=str(tmp_path / f"mine.{suffix}"),
            problem_column="q",
            answer_column="truth",
            image_column="pic",
            id_column="key",
            category_column="topic",
        )
        (prompt,) = load(spec).prompts
        assert (prompt.id, prompt.question, prompt.answer) == ("mine/train/k1", "<image>What?", "4"), suffix
        assert prompt.task == "angles"
        assert prompt.columns["topic"] == "angles"
        assert open_rgb(prompt.images[0]).getpixel((0, 0)) == (3, 3, 3)


def test_a_path_is_a_name_too_and_the_usual_column_names_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_parquet(
        tmp_path / "mine.parquet", [{"images": [cell()], "problem": "Find x.", "answer": "1"}]
    )
    by_path = load(DataSpec(str(path))).prompts
    monkeypatch.chdir(tmp_path)
    assert [p.id for p in load(DataSpec("mine.parquet")).prompts] == [p.id for p in by_path]
    (tmp_path / "my-set").mkdir()
    path = path.rename(tmp_path / "my-set" / "train.parquet")
    by_name = load(DataSpec("my-set")).prompts
    assert by_name[0].id.startswith("my-set/train/")
    spelt_out = load(
        DataSpec(str(path), image_column="images", problem_column="problem", answer_column="answer")
    ).prompts
    assert [p.id for p in by_name] == [p.id for p in spelt_out]
    assert not DataSpec("virl39k", image_column="images", problem_column="problem").names_columns


def test_ids_that_look_numbered_do_not_collide(tmp_path: Path) -> None:
    rows = [
        {"problem": f"Find {i}.", "answer": "1", "id": name} for i, name in enumerate(["a", "a#2", "a", "a"])
    ]
    path = write_jsonl(tmp_path / "mine.jsonl", rows)
    ids = [p.id for p in load(DataSpec("custom", path=str(path), image_column="")).prompts]
    assert ids == ["mine/train/a", "mine/train/a#2", "mine/train/a#3", "mine/train/a#4"]


def test_a_limit_is_said_with_counts(tmp_path: Path) -> None:
    rows = [{"images": [cell()], "problem": f"Find {i}.", "answer": "1"} for i in range(9)]
    data = load(DataSpec("geometry3k", path=str(write_parquet(tmp_path / "train.parquet", rows)), limit=4))
    assert [p.question for p in data.prompts] == [f"<image>Find {i}." for i in range(4)]
    assert data.warnings == ("only the first 4 of 9 rows of geometry3k/train are read.",)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            DataSpec("mine.csv", path="other.csv"),
            r"mine.csv names a file or folder, and data.path=other.csv another",
        ),
        (DataSpec("geometry4k"), r"unknown data set 'geometry4k'\. Did you mean 'geometry3k'\?"),
        (DataSpec("custom"), "custom needs --set data.path=FILE"),
        (DataSpec("nowhere.jsonl"), "nowhere.jsonl does not exist"),
        (DataSpec("custom", path="/nowhere/x.parquet"), "/nowhere/x.parquet does not exist"),
    ],
)
def test_a_wrong_name_is_one_sentence(spec: DataSpec, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        load(spec)


def test_missing_columns_are_named_with_the_nearest(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "mine.jsonl", [{"image": "a.png", "problems": "?", "answer": "1"}])
    with pytest.raises(UserError, match=r"column 'problem' missing; the file has 'image', 'problems'") as no:
        load(DataSpec("custom", path=str(path)))
    assert "Did you mean 'problems' for 'problem'?" in str(no.value)
    assert "--set data.problem_column=NAME" in str(no.value)
    with pytest.raises(UserError, match=r"column 'qid' missing"):
        load(
            DataSpec(
                "custom", path=str(path), image_column="image", problem_column="problems", id_column="qid"
            )
        )


def test_wrong_settings_are_one_sentence() -> None:
    for wrong in ({"bad_rows": "ignore"}, {"check_images": "never"}, {"limit": 0}):
        with pytest.raises(UserError, match=f"{next(iter(wrong))} is"):
            DataSpec("geometry3k", **wrong)


def test_damaged_files_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 but no more")
    (tmp_path / "b.json").write_text("[{]")
    (tmp_path / "c.txt").write_text("x")
    for name, sentence in (
        ("a.parquet", "not a readable parquet"),
        ("b.json", "is not JSON"),
        ("c.txt", "not a data file"),
    ):
        with pytest.raises(UserError, match=sentence):
            load(DataSpec("custom", path=str(tmp_path / name)))


def test_a_question_without_marks_follows_its_images_at_once(tmp_path: Path) -> None:
    rows = [{"id": "1", "images": [cell()], "problem": "\n  Find x. ", "answer": "5"}]
    path = write_parquet(tmp_path / "train.parquet", rows)
    (prompt,) = load(DataSpec("geometry3k", path=str(path))).prompts
    assert prompt.question == "<image>Find x. "
