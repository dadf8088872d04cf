"""A data set with every kind of bad and odd row: named or used, and the training over it goes on."""

import json
import struct
import zlib
from io import BytesIO

from fault_harness import repeatable_rows
from PIL import Image

from pivot.runs.run import train


def encode(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def claimed(width: int, height: int) -> bytes:
    """A PNG of a few bytes that says it is this large."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def odd_images() -> dict[str, bytes]:
    """Unusual, and fine."""
    frames = [Image.new("RGB", (60, 60), colour) for colour in ("red", "green")]
    exif = Image.Exif()
    exif[0x0112] = 6
    return {
        "plain": encode(frames[0]),
        "animated": encode(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "cmyk": encode(Image.new("CMYK", (60, 60)), "JPEG"),
        "palette": encode(Image.new("P", (60, 60))),
        "one-bit": encode(Image.new("1", (60, 60))),
        "rotated": encode(Image.new("RGB", (60, 90)), "JPEG", exif=exif),
        "one-pixel": encode(Image.new("RGB", (1, 1))),
    }


def bad_images() -> dict[str, bytes]:
    """Of no use."""
    return {
        "empty": b"",
        "truncated": encode(Image.new("RGB", (60, 60)))[:-30],
        "text": b"not an image",
        "huge": claimed(20_000, 20_000),
        "bomb": claimed(65_000, 65_000),
        "strip": encode(Image.new("L", (20_000, 40))),
    }


def rows(folder) -> list[dict]:
    made = []
    for name, data in (odd_images() | bad_images()).items():
        (folder / f"{name}.img").write_bytes(data)
        made.append({"id": name, "problem": "<image>Find x.", "answer": "1", "images": [f"{name}.img"]})
    plain = {"id": "x", "problem": "<image>Find x.", "answer": "1", "images": ["plain.img"]}
    texts = {
        "right-to-left": "<image>ما هي الزاوية؟",
        "pad": "<image>A literal <|image_pad|> and <|im_end|> and <|vision_start|>.",
        "control": "<image>\x00\x07 ?",
        "long": "<image>" + "word " * 20_000,
    }
    made += [plain | {"id": name, "problem": text} for name, text in texts.items()]
    made += [plain | {"id": "twice"}, plain | {"id": "twice", "answer": "2"}]
    made += [
        plain | {"id": "two-marks", "problem": "<image><image>?"},
        plain | {"id": "no-answer", "answer": " "},
    ]
    made += [
        plain | {"id": "two-images", "images": ["plain.img", "cmyk.img"]},
        plain | {"id": "list", "answer": [1]},
    ]
    made += [plain | {"id": "outside", "images": ["../../etc/passwd"]}, {"id": "no-columns"}]
    return made


USED = {*odd_images(), "right-to-left", "pad", "control"}
"""Besides the two that share an id."""
LEFT_OUT = {*bad_images(), "two-marks", "no-answer", "two-images", "list", "outside", "no-columns"}


def test_a_training_over_every_kind_of_row(tmp_path, small_config, capsys):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows(tmp_path)))
    config = small_config(
        "pivot", f"data.train={path}", "data.size=null", "train.steps=1", "method.dynamic_sampling=false",
        f"train.prompts_per_step={len(USED) + 2}", "train.minibatch_prompts=6", "rollout.max_tokens=8",
        "rollout.max_prompt_tokens=1024",
    )  # fmt: skip
    assert train(config, tmp_path / "run").finished
    said = capsys.readouterr().out
    assert f"{len(LEFT_OUT)} of {len(USED) + 3 + len(LEFT_OUT)} rows left out" in said
    assert "1 prompts are longer than rollout.max_prompt_tokens=1024 and left out" in said
    assert "long" in said
    (row,) = repeatable_rows(tmp_path / "run")
    assert row["rollout/groups"] == len(USED) + 2, "every odd row was rolled out, scored and trained on"
    assert row["optim/updates"] == 2
    assert row["optim/skipped_updates"] == 0


def test_every_row_that_is_left_out_is_named_with_its_reason(tmp_path):
    from pivot.data import DataSpec, load

    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows(tmp_path)))
    data = load(DataSpec("custom", path=str(path)))
    assert {row.id.rsplit("/")[-1] for row in data.skipped} == LEFT_OUT
    assert all(row.reason for row in data.skipped)
    names = [prompt.id.rsplit("/")[-1] for prompt in data.prompts]
    assert len(names) == len(set(names)), "repeated ids are told apart"
