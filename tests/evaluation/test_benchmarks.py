"""Every benchmark file on real rows where a sample exists, on hand-made rows in its columns otherwise."""

import json
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pivot.data import DataSet, DataSpec
from pivot.data.images import open_rgb
from pivot.errors import UserError
from pivot.evaluation import benchmarks
from pivot.evaluation.benchmarks import BENCHMARKS, hallusionbench, load, we_math
from pivot.evaluation.matching import LETTERS, BenchmarkJudge
from pivot.evaluation.scoring import Graded
from pivot.evaluation.sets import SetOptions, check_name, load_sets, score_name
from pivot.types import Prompt

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
needs_samples = pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data")
SAMPLES = {
    "geometry3k": ("geometry3k/test.parquet", 32),
    "mathvista": ("mathvista/testmini.parquet", 40),
    "mathverse": ("mathverse/testmini.parquet", 18),
    "mathverse-v": ("mathverse/testmini.parquet", 11),
    "we-math": ("we_math/testmini.parquet", 24),
    "mmk12": ("mmk12/test.parquet", 24),
    "logicvista": ("logicvista/test.parquet", 24),
    "mmmu-pro": ("mmmu_pro/test.parquet", 30),
    "hallusionbench": ("hallusionbench/image.parquet", 40),
}
WITHOUT_IMAGES = ("mathvista", "mmmu-pro", "hallusionbench")


def sample(name: str, **settings: Any) -> DataSet:
    allow = name in WITHOUT_IMAGES
    return load(DataSpec(name, path=str(SHARED / SAMPLES[name][0]), allow_missing_images=allow, **settings))


def png(colour: int = 0) -> bytes:
    buffer = BytesIO()
    Image.new("L", (30, 20), colour).save(buffer, "PNG")
    return buffer.getvalue()


def image(colour: int = 0) -> dict[str, Any]:
    return {"bytes": png(colour), "path": "x.png"}


def made(tmp_path: Path, name: str, rows: list[dict[str, Any]], **settings: Any) -> DataSet:
    path = tmp_path / f"{BENCHMARKS[name].split}.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return load(DataSpec(name, path=str(path), **settings))


@needs_samples
@pytest.mark.parametrize("name", SAMPLES)
def test_real_rows_become_prompts(name: str) -> None:
    data = sample(name)
    benchmark = BENCHMARKS[name]
    assert (len(data.prompts), data.split) == (SAMPLES[name][1], benchmark.split)
    assert not [row for row in data.skipped if row.broken]
    assert len({prompt.id for prompt in data.prompts}) == len(data.prompts)
    assert data.num_duplicates == 0
    assert f"{benchmark.expected[benchmark.split]:,} are expected" in data.warnings[0]
    for prompt in data.prompts:
        assert prompt.question.count("<image>") == len(prompt.images)
        assert all(open_rgb(source).mode == "RGB" for source in prompt.images)
        if prompt.columns.get("matching") == "letter" and prompt.columns["choices"]:
            assert prompt.answer in LETTERS[: len(prompt.columns["choices"])]


@needs_samples
@pytest.mark.parametrize("name", WITHOUT_IMAGES)
def test_rows_whose_image_is_not_there_are_skipped_but_readable(name: str) -> None:
    data = load(DataSpec(name, path=str(SHARED / SAMPLES[name][0])))
    assert data.prompts == []
    assert {row.reason for row in data.skipped} == {"image missing"}
    assert all(row.prompt is not None and "<image>" in row.prompt.question for row in data.skipped)


@needs_samples
def test_the_keys_of_all_samples_grade_as_correct_and_others_do_not() -> None:
    prompts = [prompt for name in SAMPLES for prompt in sample(name).prompts]
    right = [f"<think>So.</think> \\boxed{{{prompt.answer}}}" for prompt in prompts]
    wrong = ["<think>So.</think> \\boxed{certainly not this}"] * len(prompts)
    with BenchmarkJudge() as judge:
        for prompt, reward in zip(prompts, judge.judge(prompts, right), strict=True):
            assert reward.correct, (prompt.id, prompt.answer, reward)
        assert not any(reward.correct for reward in judge.judge(prompts, wrong))


@needs_samples
@pytest.mark.parametrize("name", ["mathvista", "we-math", "mmmu-pro", "logicvista", "mathverse"])
def test_letters_of_real_rows_grade_with_and_without_their_text(name: str) -> None:
    choosing = [p for p in sample(name).prompts if p.columns["matching"] == "letter" and p.columns["choices"]]
    assert choosing
    prompts: list[Prompt] = []
    boxes: list[str] = []
    expected: list[bool] = []
    for prompt in choosing:
        options, position = prompt.columns["choices"], LETTERS.index(prompt.answer)
        other = (position + 1) % len(options)
        prompts += [prompt] * 3
        boxes += [f"{prompt.answer}. {options[position]}", f"({prompt.answer})", LETTERS[other]]
        expected += [True, True, False]
    with BenchmarkJudge() as judge:
        rewards = judge.judge(prompts, [f"\\boxed{{{box}}}" for box in boxes])
    assert [reward.correct for reward in rewards] == expected


@needs_samples
def test_mathvista_asks_with_the_official_query_and_keys_by_letter() -> None:
    by_id = {prompt.id: prompt for prompt in sample("mathvista").prompts}
    choice = by_id["mathvista/testmini/182"]
    assert (choice.answer, choice.columns["choices"]) == ("B", ["yes", "no"])
    assert choice.question.endswith("Question: Is Web Green greater than Yellow?\nChoices:\n(A) yes\n(B) no")
    assert by_id["mathvista/testmini/225"].columns["matching"] == "list"
    assert by_id["mathvista/testmini/93"].answer == "197.3"


@needs_samples
def test_mathverse_versions() -> None:
    data = sample("mathverse")
    assert {row.reason for row in data.skipped} == {"text-only version, not part of the 3,940"}
    by_id = {prompt.id: prompt for prompt in data.prompts}
    only = by_id["mathverse/testmini/550/Vision-Only"]
    assert (
        only.question == "<image>Answer the question shown in the image. Give the letter of the right option."
    )
    assert (
        by_id["mathverse/testmini/453/Vision-Only"].question
        == "<image>Answer the question shown in the image."
    )
    assert {prompt.task for prompt in sample("mathverse-v").prompts} == {
        "Vision Intensive",
        "Vision Dominant",
        "Vision Only",
    }


@needs_samples
def test_we_math_groups_are_whole_and_give_the_metric() -> None:
    prompts = sample("we-math").prompts
    assert {prompt.task for prompt in prompts} == {"one-step", "two-step", "three-step"}
    first = prompts[0]
    assert first.id == "we-math/testmini/2steps_122/2steps_1"
    assert first.question.endswith("\nA. 3, 5\nB. 4, 5\nC. 6, 5\nD. 5, 5\nE. No correct answer")
    scores = we_math.metrics([Graded(p.id, (True, p.task == "one-step"), p.task, p.columns) for p in prompts])
    assert (scores["problems"], scores["incomplete"]) == (7, 0)
    assert scores["CM_strict"] == scores["IG"] == pytest.approx(0.5)


@needs_samples
def test_mmmu_pro_places_its_images(tmp_path: Path) -> None:
    row = next(
        r for r in pq.read_table(SHARED / "mmmu_pro/test.parquet").to_pylist() if "<image 1>" in r["question"]
    )
    row |= {"question": "Compare <image 2> with <image 1> and <image 2>.", "options": "['<image 3>', 'none']"}
    row |= {"answer": "A", **{f"image_{i}": image(i) for i in range(1, 5)}}
    (prompt,) = made(tmp_path, "mmmu-pro", [row]).prompts
    assert prompt.question == "<image>Compare <image> with <image> and <image>.\nA. <image>\nB. none"
    assert [open_rgb(source).getpixel((0, 0))[0] for source in prompt.images] == [4, 2, 1, 2, 3]


@needs_samples
def test_hallusionbench_scores_whole_sets() -> None:
    prompts = sample("hallusionbench").prompts
    assert {prompt.answer for prompt in prompts} == {"yes", "no"}
    says_yes = [Graded(p.id, (p.answer == "yes",), p.task, p.columns) for p in prompts]
    scores = hallusionbench.metrics(says_yes)
    assert scores["aAcc"] == pytest.approx(sum(p.answer == "yes" for p in prompts) / 40)
    assert scores["fAcc"] < scores["aAcc"]
    assert hallusionbench.metrics([Graded(p.id, (True,), p.task, p.columns) for p in prompts]) == {
        "aAcc": 1.0,
        "fAcc": 1.0,
        "qAcc": 1.0,
    }


def test_logicvista_leaves_its_empty_row_out(tmp_path: Path) -> None:
    rows = [
        {
            "id": "v1_1",
            "question": "Which? Select from A and B. (A) x (B) y",
            "image": image(),
            "answer": "B",
        },
        {"id": "v1_382", "question": "", "image": image(), "answer": ""},
        {"id": "v1_3", "question": "Which?", "image": image(), "answer": ""},
    ]
    data = made(tmp_path, "logicvista", [{**row, "skill": ["spatial"]} for row in rows])
    assert [prompt.id for prompt in data.prompts] == ["logicvista/test/v1_1"]
    assert [(row.id, row.reason, row.broken) for row in data.skipped] == [
        ("logicvista/test/v1_382", "question and answer are empty in the source", False),
        ("logicvista/test/v1_3", "answer missing", True),
    ]


HAND_MADE: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "mmk12": (
        {"id": "1", "question": "Which gas?\nA. oxygen\nB. neon", "answer": "B", "subject": "chemistry",
         "image": image()},
        "<image>Which gas?\nA. oxygen\nB. neon", "B", "chemistry",
    ),
    "counting": (
        {"images": [image()], "problem": "<image>How many items are here?", "answer": "<answer> 4 </answer>"},
        "<image>How many items are here?", "4", "counting",
    ),
    "scienceqa": (
        {"image": image(), "question": "Which is a mammal?", "choices": ["trout", "bat"], "answer": 1,
         "hint": "Look.", "subject": "natural science"},
        "<image>Context: Look.\nWhich is a mammal?\nA. trout\nB. bat", "B", "natural science",
    ),
    "chartqapro": (
        {"Question": ["First?", "Then?"], "Answer": ["2", "[1, 3]"], "Question Type": "Conversational",
         "image": png(), "Year": ["NO", "NO"], "Paragraph": "About ships."},
        "<image>Context: About ships.\n\nQ1: First?\nA1: 2\nQ2: Then?", "[1, 3]", "Conversational",
    ),
    "infographicvqa": (
        {"questionId": "98313", "question": "What share?", "answers": ["5%", "5 percent"], "image": image(),
         "answer_type": ["single span"]},
        "<image>What share?", "5%", "single span",
    ),
    "realworldqa": (
        {"image": image(), "question": "Which way?\nA. Left\nB. Right\nPlease answer directly with only the "
         "letter of the correct option and nothing else.", "answer": "A", "image_path": "0.webp"},
        "<image>Which way?\nA. Left\nB. Right", "A", "realworldqa",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HAND_MADE)
def test_hand_made_rows_in_the_documented_columns(tmp_path: Path, name: str) -> None:
    row, question, answer, category = HAND_MADE[name]
    (prompt,) = made(tmp_path, name, [row]).prompts
    assert (prompt.question, prompt.answer, prompt.task) == (question, answer, category)
    assert open_rgb(prompt.images[0]).size == (30, 20)
    with BenchmarkJudge() as judge:
        right, wrong = judge.judge([prompt] * 2, [f"\\boxed{{{answer}}}", "\\boxed{unknown}"])
    assert right.correct
    assert not wrong.correct


def test_the_other_layouts_of_counting_mmk12_and_mmmu_pro(tmp_path: Path) -> None:
    r1v = {"image": image(), "problem": "How many?", "solution": "<answer> 7 </answer>"}
    assert made(tmp_path, "counting", [r1v]).prompts[0].answer == "7"
    copy = {"images": [image()], "problem": "<image>Which?\nA. x\nB. y", "answer": "A"}
    assert made(tmp_path, "mmk12", [copy]).prompts[0].columns["choices"] == ["x", "y"]
    vision = {"id": "test_1", "image": image(), "options": "['x', 'y']", "answer": "B", "subject": "Art"}
    (prompt,) = made(tmp_path, "mmmu-pro", [vision]).prompts
    assert prompt.question.startswith("<image>Answer the question shown in the image.")
    assert prompt.answer == "B"


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("scienceqa", {"answer": 5}, "answer is not an index into the 2 choices (5)"),
        ("chartqapro", {"Answer": ["2"]}, "Question and Answer differ in length (2 questions, 1 answers)"),
        ("infographicvqa", {"answers": [""]}, "answers missing"),
        ("realworldqa", {"answer": None}, "answer missing"),
        ("mmk12", {"question": "  "}, "question missing"),
    ],
)
def test_broken_rows_are_named(tmp_path: Path, name: str, change: dict[str, Any], reason: str) -> None:
    (row,) = made(tmp_path, name, [{**HAND_MADE[name][0], **change}]).skipped
    assert row.reason == reason


PAPO_INSTRUCTION = (
    "\n\nYou first think through the reasoning process as an internal monologue, enclosed within <think> "
    "</think> tags. Then, provide your final answer enclosed within \\boxed{}."
)


@pytest.mark.parametrize("name", [name for name, known in BENCHMARKS.items() if known.papo_split])
def test_papo_eval_rows_serve_every_benchmark_of_the_bundle(tmp_path: Path, name: str) -> None:
    split = BENCHMARKS[name].papo_split
    with zipfile.ZipFile(tmp_path / f"{split}_images.zip", "w") as archive:
        archive.writestr(f"{split}/{split}_0_0.png", png(5))
    row = {
        "messages": [
            {"role": "user", "content": f"<image>Which?\nA. x\nB. y{PAPO_INSTRUCTION}"},
            {"role": "assistant", "content": "B"},
        ],
        "images": [f"./data/images/{split}/{split}_0_0.png"],
        "id": f"{split}_0",
    }
    (tmp_path / "data").mkdir()
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "data" / f"{split}-00000-of-00001.parquet")
    data = load(DataSpec(name, path=str(tmp_path)), from_papo_eval=True)
    (prompt,) = data.prompts
    assert (prompt.id, prompt.question, prompt.answer) == (
        f"{name}/{split}/{split}_0",
        "<image>Which?\nA. x\nB. y",
        "B",
    )
    assert open_rgb(prompt.images[0]).getpixel((0, 0)) == (5, 5, 5)
    by_bundle = load(DataSpec("PAPO-Galaxy/PAPO_eval", split=split, path=str(tmp_path)))
    assert [p.id for p in by_bundle.prompts] == [prompt.id]
    assert f"{BENCHMARKS[name].papo_rows:,} are expected" in data.warnings[0]


def test_vppo_eval_json_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    turns = [{"from": "human", "value": "<image>Range?"}, {"from": "gpt", "value": "12"}]
    (tmp_path / "rows.json").write_text(json.dumps([{"messages": turns, "images": ["a.png"]}]))
    (prompt,) = load(DataSpec("mathverse", path=str(tmp_path / "rows.json"))).prompts
    assert (prompt.question, prompt.answer) == ("<image>Range?", "12")


def test_two_sets_of_one_name_would_replace_each_others_scores(tmp_path: Path) -> None:
    row = {"problem": "What is 1 + 1?", "answer": "2"}
    paths = [tmp_path / folder / "rows.jsonl" for folder in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        path.write_text(json.dumps(row) + "\n")
    one, other = map(str, paths)
    assert [found.name for found in load_sets([one, one], SetOptions({}))] == ["rows", "rows"]
    with pytest.raises(UserError, match=rf"{one} and {other} would both be called 'rows' in the scores"):
        load_sets([one, other], SetOptions({}))
    tests = [path.rename(path.with_name("test.jsonl")) for path in paths]
    names = [found.name for found in load_sets(list(map(str, tests)), SetOptions({}))]
    assert names == ["a", "b"] == [score_name(str(path)) for path in tests]


@pytest.mark.parametrize(
    ("name", "called"),
    [("tiny", "tiny-test"), ("tiny-ood", "tiny-ood"), ("mathvista", "mathvista"), ("me/mine", "me--mine")],
)
def test_what_scores_call_a_set(name: str, called: str) -> None:
    assert score_name(name) == called


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown benchmark 'mathvist'\. Did you mean 'mathvista'\?"):
        check_name("mathvist")
    with pytest.raises(UserError, match="scienceqa is not in the PAPO-Eval bundle, which has geometry3k"):
        load(DataSpec("scienceqa"), from_papo_eval=True)
    with pytest.raises(UserError, match="PAPO_eval needs --split, one of hiyouga_geometry3k"):
        load(DataSpec("PAPO-Galaxy/PAPO_eval"))
    row = HAND_MADE["realworldqa"][0]
    with pytest.raises(UserError, match=r"realworldqa/test has 1 rows here, 765 are expected.*--strict"):
        load(DataSpec("realworldqa", path=str(_write(tmp_path, [row]))), strict=True)
    with pytest.raises(
        UserError, match=r"mathvista: columns .*'decoded_image'.* missing; the file has 'image', "
    ):
        load(DataSpec("mathvista", path=str(_write(tmp_path, [row]))))


def _write(tmp_path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "test.parquet")
    return tmp_path / "test.parquet"


def test_every_benchmark_says_what_is_known_and_what_was_run() -> None:
    assert list(BENCHMARKS) == [
        "geometry3k", "mathvista", "mathverse", "mathverse-v", "we-math", "mmk12", "logicvista", "counting",
        "mmmu-pro", "scienceqa", "hallusionbench", "chartqapro", "infographicvqa", "realworldqa",
    ]  # fmt: skip
    rows = {name: known.expected[known.split] for name, known in BENCHMARKS.items()}
    assert rows["geometry3k"] == 601
    assert rows["mathverse"] == 3940
    assert rows["we-math"] == 1740
    for known in BENCHMARKS.values():
        assert all((known.heading, known.matching, known.known_from, known.tested_on))


OWN_BENCHMARK = """
from pivot.data import Draft, Layout
from pivot.evaluation.benchmarks import Benchmark


def draft(row):
    return Draft(row.text("task"), row.text("label"), images=[row["picture"]], columns={"matching": "yes-no"})


MINE = Benchmark(name="mine", heading="Mine", hub_id="me/mine", split="test",
                 layouts=(Layout(("task", "label", "picture"), draft),), expected={"test": 2},
                 metrics=lambda graded: {"prompts asked": len(graded)})
"""


def test_a_benchmark_of_ones_own_is_named_by_its_file(tmp_path, monkeypatch) -> None:
    (tmp_path / "my_benchmark.py").write_text(OWN_BENCHMARK)
    rows = [{"task": f"Is it {word}?", "label": "yes", "picture": png()} for word in ("red", "round")]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "test.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(benchmarks, "BENCHMARKS", dict(BENCHMARKS))
    name = f"{tmp_path}/my_benchmark.py:MINE"
    (found,) = load_sets([name], SetOptions({name: "test.parquet"}))
    assert (found.name, len(found.prompts), found.notes) == ("mine", 2, ())
    assert found.metrics is not None
    with pytest.raises(UserError, match=r"my_benchmark\.py has no benchmark 'YOURS'; there are MINE"):
        load_sets(["my_benchmark.py:YOURS"], SetOptions({}))
    with pytest.raises(
        UserError, match=r"my_benchmark\.py:draft is of type function, but a benchmark must be a .*Benchmark"
    ):
        load_sets(["my_benchmark.py:draft"], SetOptions({}))
