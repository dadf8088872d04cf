"""`pivot data` and `pivot benchmarks` as a person types them."""

import json
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from pivot.cli import main

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
needs_samples = pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data")
INSTRUCTION = (
    "You first think through the reasoning process as an internal monologue, enclosed within <think> "
    "</think> tags. Then, provide your final answer enclosed within \\boxed{ }."
)


def lines(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict]:
    assert main(["data", *words, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    buffer = BytesIO()
    Image.new("RGB", (40, 30)).save(buffer, "PNG")
    (tmp_path / "a.png").write_bytes(buffer.getvalue())
    (tmp_path / "b.png").write_bytes(buffer.getvalue()[:50])
    rows = [
        {"id": "1", "images": ["a.png"], "problem": "Find <image> x.", "answer": "7"},
        {"id": "2", "images": ["b.png"], "problem": "Find y.", "answer": "8"},
        {"id": "3", "images": [], "problem": "1 + 1?", "answer": None},
    ]
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_json_lines_hold_the_whole_text_and_why_rows_are_left_out(
    capsys: pytest.CaptureFixture[str], own_file: Path
) -> None:
    first, second, third = lines(capsys, "custom", "--path", str(own_file))
    assert first == {
        "id": "mine/train/1",
        "prompt": "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
        "Find <|vision_start|><|image_pad|><|vision_end|> x.\n\n"
        f"{INSTRUCTION}<|im_end|>\n<|im_start|>assistant\n",
        "images": {"number": 1, "sizes": [[40, 30]]},
        "answer": "7",
        "category": "",
        "skipped": None,
    }
    assert second["skipped"].startswith("image cannot be decoded")
    assert "Find y." in second["prompt"]
    assert (third["id"], third["skipped"], third["prompt"]) == ("mine/train/3", "answer missing", None)


def test_the_table_shows_rows_text_and_sum(capsys: pytest.CaptureFixture[str], own_file: Path) -> None:
    assert main(["data", "custom", "--path", str(own_file)]) == 0
    shown = capsys.readouterr().out
    assert "40 x 30" in shown
    assert "<|vision_start|><|image_pad|><|vision_end|> x." in shown
    assert "1 of 3 rows are used; skipped: 1 image cannot be decoded, 1 answer missing." in shown


@needs_samples
@pytest.mark.parametrize(
    ("name", "file", "rows"),
    [
        ("geometry3k", "geometry3k/train.parquet", 64),
        ("geometry3k", "geometry3k_intergps", 5),
        ("mathvista", "mathvista/testmini.parquet", 40),
        ("mathverse", "mathverse/testmini.parquet", 20),
        ("we-math", "we_math/testmini.parquet", 24),
        ("mmk12", "mmk12/test.parquet", 24),
        ("logicvista", "logicvista/test.parquet", 24),
        ("mmmu-pro", "mmmu_pro/test.parquet", 30),
        ("hallusionbench", "hallusionbench/image.parquet", 40),
    ],
)
def test_real_samples(capsys: pytest.CaptureFixture[str], name: str, file: str, rows: int) -> None:
    found = lines(capsys, name, "--path", str(SHARED / file))
    assert len(found) == rows
    for row in found:
        assert set(row) == {"id", "prompt", "images", "answer", "category", "skipped"}
        assert row["images"]["number"] == len(row["images"]["sizes"])
        if row["skipped"] is None:
            assert row["prompt"].count("<|image_pad|>") == row["images"]["number"] > 0
            assert row["prompt"].endswith(f"{INSTRUCTION}<|im_end|>\n<|im_start|>assistant\n")
            assert row["answer"]


@needs_samples
def test_missing_images_can_be_kept(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(SHARED / "mathvista" / "testmini.parquet")
    skipped = lines(capsys, "mathvista", "--path", path)
    kept = lines(capsys, "mathvista", "--path", path, "--allow-missing-images")
    assert {row["skipped"] for row in skipped} == {"image missing"}
    assert {row["skipped"] for row in kept} == {None}
    assert [row["answer"] for row in kept] == [row["answer"] for row in skipped]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["mathvisto"], "unknown data set 'mathvisto'. Did you mean 'mathvista'?"),
        (["custom"], "custom needs --set data.path=FILE"),
        (["mathvista", "--path", "/nowhere"], "/nowhere does not exist"),
        (["custom", "--path", "FILE", "--problem-column", "problems"], "'problem' for 'problems'"),
        (["custom", "--path", "FILE", "--bad-rows", "refuse"], "2 of 3 rows of mine/train cannot be used"),
        (["virl39k", "--path", "FILE", "--strict"], "38,870 are expected"),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], own_file: Path, words: list[str], sentence: str
) -> None:
    assert main(["data", *(str(own_file) if word == "FILE" else word for word in words)]) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert len(said.err.strip().splitlines()) == 1
    assert "Traceback" not in said.err + said.out


def test_a_number_of_rows_that_differs_is_said_on_standard_error(
    capsys: pytest.CaptureFixture[str], own_file: Path
) -> None:
    assert main(["data", "virl39k", "--path", str(own_file), "--json"]) == 0
    said = capsys.readouterr()
    assert "virl39k/train has 3 rows here, 38,870 are expected" in said.err
    assert len(said.out.splitlines()) == 3


@pytest.mark.parametrize("options", [[], ["--json"], ["--bad-rows", "refuse"]])
def test_terminal_escapes_in_rows_are_shown_not_sent(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: list[str]
) -> None:
    sequence = "\x1b[31m\x9b2J\u202e[bold]x[/bold]"
    rows = [
        {"id": f"a{sequence}", "problem": f"?{sequence}", "answer": f"5{sequence}", "category": sequence},
        {"id": f"b{sequence}", "problem": None, "answer": "5"},
    ]
    path = tmp_path / "[red]mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    main(["data", str(path), "--image-column", "", "--category-column", "category", *options])
    said = capsys.readouterr()
    assert not {"\x1b", "\x9b", "\u202e"} & set(said.out + said.err)
    assert "\\u001b" in said.out + said.err
    if not options:
        assert "[red]mine" in said.out
        assert "[bold]" in "".join(said.out.split())


def test_benchmarks_lists_what_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["benchmarks", "--json"]) == 0
    known = {(row["name"], row["use"]): row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert len(known) == 16
    assert known["mathvista", "benchmark"]["hub_id"] == "AI4Math/MathVista"
    assert known["virl39k", "training"]["rows"] == 38870
    assert known["realworldqa", "out of domain"]["tested_on"].startswith("hand-made rows")
    assert main(["benchmarks"]) == 0
    assert "pivot data NAME" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("setting", "system"),
    [
        ("prompt.system=Be brief.", "<|im_start|>system\nBe brief.<|im_end|>\n"),
        ("prompt.system=", ""),
        ("prompt.template=Q: {{ question }}", "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"),
    ],
)
def test_the_prompt_is_shown_as_its_settings_say(capsys, own_file, setting, system):
    first, *_ = lines(capsys, str(own_file), "--set", setting)
    assert first["prompt"].startswith(f"{system}<|im_start|>user\n")
    assert ("Q: Find" in first["prompt"]) == setting.startswith("prompt.template")


@pytest.mark.parametrize(
    ("name", "content", "options", "said"),
    [
        ("empty.jsonl", "", [], "empty: no row could be read; rows are JSON objects"),
        ("numbers.json", "[1, 2]", [], "numbers: no row could be read; rows are JSON objects"),
        ("header.csv", "problem,answer\n", [], "header: no row could be read; rows are JSON objects"),
        ("some.csv", "problem,answer\n1+1?,2\n", ["--limit", "0"], "--limit is 0; it must be at least 1"),
        ("some.csv", "problem,answer\n1+1?,2\n", ["--set", "train.lr=1"], "`data` and `prompt` here"),
        ("some.csv", "problem,answer\n1+1?,2\n", ["--set", "prompt.template={{ q }}"], "uses {{ q }}"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, capsys, name, content, options, said):
    (tmp_path / name).write_text(content)
    assert main(["data", str(tmp_path / name), *options]) == 2
    message = capsys.readouterr().err
    assert said in message
    assert message.count("\n") == 1


def test_a_mistyped_set_names_the_nearest(capsys):
    assert main(["data", "tinny"]) == 2
    assert "unknown data set 'tinny'. Did you mean 'tiny'?" in capsys.readouterr().err
