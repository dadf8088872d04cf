"""Soak: JSON lines of random content; each is used or skipped with a reason."""

import json
import os
import random
import time

from PIL import Image
from soak_table import record

from pivot.data import CUSTOM, DataSpec, load

SECONDS = float(os.environ.get("SOAK_ROWS_SECONDS", "60"))
ROWS = 200
"""Of a file."""
TEXTS = ["", " ", "5", "<image>", "<image><image>", "Find x.", "\x00\x1b[2J", "\ud800", "\u202eabc", "ﷺ" * 50,
         "9" * 6000, "a" * 200_000, "<|im_end|>", "<|image_pad|>", "{{7*7}}", "../../etc/passwd", "=1+1", "\\boxed{5}"]  # fmt: skip
IMAGES = ["a.png", "none.png", "/etc/passwd", "../a.png", "cut.png", "", "data:image/png;base64,AAAA", "http://127.0.0.1/x",
          {"bytes": "AAAA"}, {"path": "a.png"}, [], ["a.png"], ["a.png", "a.png"], 5, None, True]  # fmt: skip
ODD = [None, True, 0, -1, 1.5, 10**30, float("nan"), float("inf"), [], {}, [[[]]], {"a": {"b": [None]}}]
LINES = [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"id": ', b'{"id": 1}{"id": 2}', b'"text"', b"[" * 5000,
         b'{"a":' * 5000, b'{"problem": ' + b"9" * 6000 + b"}"]  # fmt: skip


def line(draw: random.Random) -> bytes:
    if draw.random() < 0.1:
        return draw.choice(LINES)
    value = lambda likely: draw.choice(likely if draw.random() < 0.7 else ODD)  # noqa: E731
    row = {"id": value(TEXTS), "problem": value(TEXTS), "answer": value(TEXTS), "images": value(IMAGES)}
    for name in list(row):
        if draw.random() < 0.05:
            del row[name]
    return json.dumps(row).encode()


def test_every_row_is_used_or_skipped_with_a_reason(tmp_path):
    Image.new("RGB", (40, 40), "red").save(tmp_path / "a.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "a.png").read_bytes()[:-20])
    draw, deadline = random.Random(time.time_ns()), time.monotonic() + SECONDS
    first = json.dumps({"id": "first", "problem": "<image>?", "answer": "1", "images": ["a.png"]}).encode()
    files = rows = used = skipped = 0
    path = tmp_path / "rows.jsonl"
    while time.monotonic() < deadline:
        lines = [first, *(line(draw) for _ in range(ROWS))]
        path.write_bytes(b"\n".join(lines) + b"\n")
        data = load(DataSpec(CUSTOM, path=str(path)))
        files, rows = files + 1, rows + sum(map(bool, lines))
        used, skipped = used + len(data.prompts), skipped + len(data.skipped)
        assert all(row.reason for row in data.skipped)
        assert data.prompts[0].id.endswith("first")
    assert files
    assert rows == used + skipped
    record(
        "hostile rows",
        f"{rows:,} random rows in {files} files, {SECONDS:g} s",
        f"{used:,} used, {skipped:,} named",
    )
