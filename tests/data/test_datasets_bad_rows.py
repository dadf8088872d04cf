"""Every kind of bad row is used or skipped with its id and reason; it raises only on request."""

import json
import struct
import zlib
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pivot.data import DataSet, DataSpec, load
from pivot.data.images import open_rgb
from pivot.errors import UserError


def encode(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


GOOD = encode(Image.new("RGB", (30, 20)))


def claimed(width: int, height: int) -> bytes:
    """A PNG that claims a size."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def load_images(tmp_path: Path, images: dict[str, bytes | None], **settings: object) -> DataSet:
    rows = [
        {"id": name, "images": [{"bytes": data, "path": None}], "problem": "<image>Find x.", "answer": "1"}
        for name, data in images.items()
    ]
    schema = pa.schema(
        [
            ("id", pa.string()),
            ("images", pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))),
            ("problem", pa.string()),
            ("answer", pa.string()),
        ]
    )
    pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "bad.parquet")
    return load(DataSpec("custom", path=str(tmp_path / "bad.parquet"), **settings))


def test_bad_images_are_left_out_and_odd_ones_are_used(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (10, 10), colour) for colour in ("red", "green")]
    exif = Image.Exif()
    exif[0x0112] = 6
    odd = {
        "good": GOOD,
        "animated": encode(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "cmyk": encode(Image.new("CMYK", (10, 10)), "JPEG"),
        "palette": encode(Image.new("P", (10, 10))),
        "one-bit": encode(Image.new("1", (10, 10))),
        "rotated": encode(Image.new("RGB", (10, 20)), "JPEG", exif=exif),
    }
    bad = {
        "empty": b"",
        "none": None,
        "truncated": GOOD[:-20],
        "text": b"hello",
        "huge": claimed(20_000, 20_000),
        "bomb": claimed(60_000, 60_000),
        "strip": claimed(20_000, 10),
    }
    data = load_images(tmp_path, odd | bad)
    assert [p.id for p in data.prompts] == [f"bad/train/{name}" for name in odd]
    for prompt in data.prompts:
        assert open_rgb(prompt.images[0]).mode == "RGB"
    reasons = {row.id.rsplit("/")[-1]: row.reason for row in data.skipped}
    assert set(reasons) == set(bad)
    assert reasons["empty"] == reasons["none"] == "image missing"
    assert reasons["truncated"].startswith("image cannot be decoded")
    assert reasons["huge"].startswith("image is too large (")
    assert reasons["bomb"].startswith("image is too large")
    assert reasons["strip"].startswith("image is too long")
    assert (
        "6 of 13 rows are used; skipped: 2 image missing, 2 image cannot be decoded, 2 image is too large"
        in data.summary()
    )


def test_refuse_names_the_rows(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"1 of 2 rows of bad/train cannot be used \(bad/train/cut: image cannot be"
    ):
        load_images(tmp_path, {"good": GOOD, "cut": GOOD[:-20]}, bad_rows="refuse")


def test_missing_images_can_be_kept_as_text(tmp_path: Path) -> None:
    data = load_images(tmp_path, {"none": None, "cut": GOOD[:-20]}, allow_missing_images=True)
    (kept,) = data.prompts
    assert (kept.id, kept.question, kept.images) == ("bad/train/none", "Find x.", ())
    assert [row.id for row in data.skipped] == ["bad/train/cut"]


def test_full_check_finds_what_the_quick_one_cannot(tmp_path: Path) -> None:
    hollow = {"hollow": claimed(30, 20)}
    assert len(load_images(tmp_path, hollow).prompts) == 1
    assert (
        load_images(tmp_path, hollow, check_images="full")
        .skipped[0]
        .reason.startswith("image cannot be decoded")
    )


def test_a_set_without_a_usable_row_says_so(tmp_path: Path) -> None:
    data = load_images(tmp_path, {"a": None, "b": None})
    with pytest.raises(
        UserError, match=r"bad/train has no usable row: 0 of 2 rows are used; skipped: 2 image miss"
    ):
        data.usable()


def load_lines(tmp_path: Path, lines: list[object], **settings: object) -> DataSet:
    (tmp_path / "a.png").write_bytes(GOOD)
    path = tmp_path / "rows.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return load(DataSpec("custom", path=str(path), **settings))


def row(**changes: object) -> dict[str, object]:
    return {"id": "r", "images": ["a.png"], "problem": "<image>Find x.", "answer": "1", **changes}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (row(answer=None), "answer missing"),
        (row(answer="   "), "answer missing"),
        (row(answer=["1", "2"]), "answer has the wrong type (list instead of text)"),
        (row(answer=True), "answer has the wrong type (bool instead of text)"),
        (row(problem=None), "problem missing"),
        (row(problem={"text": "?"}), "problem has the wrong type (dict instead of text)"),
        (row(images=[17]), "image has the wrong type (int instead of bytes or a path)"),
        (row(images=["b.png"]), "image file missing ('b.png')"),
        (row(images=["a.png", "a.png"]), "marks do not match images (1 <image> marks, 2 images)"),
        (row(problem="<image><image>Find x."), "marks do not match images (2 <image> marks, 1 images)"),
        (
            row(problem="A literal <image> here.", images=[]),
            "image missing",
        ),
        (row(images=["data:image/png;base64,@@@"]), "image is not valid base64"),
        (row(problem="\ud800 x"), "problem is not valid Unicode ('\\ud800 x')"),
        (row(answer="\udfff"), "answer is not valid Unicode ('\\udfff')"),
        (row(answer=float("nan")), "answer has the wrong type (float instead of text)"),
        (row(images=["a" * 5000 + ".png"]), f"image file missing ({'a' * 80!r})"),
        ("{not json", "line is not JSON"),
        ('{"id": "r", "problem": "?", "answer": ' + "7" * 5000 + "}", "line is not JSON"),
        ("[1, 2]", "line is not a JSON object"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, line: object, reason: str) -> None:
    data = load_lines(tmp_path, [row(id="first"), line])
    assert [p.id for p in data.prompts] == ["rows/train/first"]
    (skipped,) = data.skipped
    assert skipped.reason == reason
    assert skipped.id == ("rows/train/r" if isinstance(line, dict) else "rows/train/row-1")


def test_an_id_with_a_lone_surrogate_is_a_bad_row(tmp_path: Path) -> None:
    data = load_lines(tmp_path, [row(id="first"), row(id="\ud800")])
    (skipped,) = data.skipped
    assert (skipped.id, skipped.reason) == ("rows/train/row-1", "id is not valid Unicode ('\\ud800')")


def test_text_that_is_not_utf8_is_a_bad_row_in_parquet(tmp_path: Path) -> None:
    problems = pa.array([b"<image>Find x.", b"\xff\xfe", b"Find y."], pa.binary()).cast(
        pa.string(), safe=False
    )
    columns = {"images": pa.nulls(3, pa.binary()), "problem": problems, "answer": pa.array(["1", "2", "3"])}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    data = load(DataSpec("custom", path=str(tmp_path / "rows.parquet"), allow_missing_images=True))
    assert [(skipped.id, skipped.reason) for skipped in data.skipped] == [
        ("rows/train/row-1", "text is not UTF-8")
    ]
    assert [p.answer for p in data.prompts] == ["1", "3"]


def test_a_json_file_with_a_huge_integer_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text('[{"problem": "?", "answer": ' + "7" * 5000 + "}]")
    with pytest.raises(UserError, match=r"rows\.json is not JSON"):
        load(DataSpec("custom", path=str(tmp_path / "rows.json")))


@pytest.mark.parametrize(
    "problem",
    [
        "x" * 100_000,
        "مثلث <image> قائم الزاوية",
        "A literal <|image_pad|> and <|im_end|>.",
        "\x00\x07 control",
        "⊙O √2",
    ],
)
def test_odd_text_is_data(tmp_path: Path, problem: str) -> None:
    (prompt,) = load_lines(tmp_path, [row(problem=problem)]).prompts
    assert prompt.question.replace("<image>", "") == problem.replace("<image>", "")
    assert prompt.question.count("<image>") == len(prompt.images) == 1


def test_paths_cannot_leave_the_folder(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    inside = tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "secret.png").write_bytes(GOOD)
    (inside / "link.png").symlink_to(outside / "secret.png")
    paths = [
        "../outside/secret.png",
        str(outside / "secret.png"),
        "link.png",
        "x/../../outside/secret.png",
        "a\0b.png",
    ]
    lines = [row(id=str(i), images=[path]) for i, path in enumerate(paths)]
    data = load_lines(inside, lines)
    reasons = [skipped.reason for skipped in data.skipped]
    assert data.prompts == []
    assert reasons[1].startswith("image path is absolute, allow it with --set data.allow_absolute_paths=true")
    assert all(
        reason.startswith("image path leaves the data set's folder") for reason in reasons[:1] + reasons[2:]
    )
    allowed = load_lines(inside, lines[1:2], allow_absolute_paths=True)
    assert [p.id for p in allowed.prompts] == ["rows/train/1"]


def test_archives_are_read_never_unpacked(tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "figures.zip", "w") as archive:
        archive.writestr("../../escape.png", GOOD)
        archive.writestr("set/fine.png", GOOD)
        archive.writestr("set/broken.png", b"nothing")
    before = sorted(path for path in tmp_path.parent.rglob("*") if path.is_file())
    lines = [
        row(id="fine", images=["./data/images/set/fine.png"]),
        row(id="escape", images=["../../escape.png"]),
        row(id="broken", images=["set/broken.png"]),
    ]
    data = load_lines(tmp_path, lines)
    assert [p.id for p in data.prompts] == ["rows/train/fine"]
    assert [s.reason.split(" (")[0] for s in data.skipped] == [
        "image path leaves the data set's folder",
        "image cannot be decoded",
    ]
    after = sorted(path for path in tmp_path.parent.rglob("*") if path.is_file())
    assert set(after) - set(before) == {tmp_path / "rows.jsonl", tmp_path / "a.png"}
