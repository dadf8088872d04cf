"""`pivot credit`: the page for a model and a picture, end to end on the tiny model."""

import json
import re
import runpy
from html import unescape
from pathlib import Path

import pytest
import torch

import pivot
from pivot.cli import main
from pivot.config import Config
from pivot.engines.base import ScoreRequest
from pivot.engines.local import LocalEngine
from pivot.method import PRESETS, Batch
from pivot.models.rows import PromptWithResponses
from pivot.report.credit import credit_page, mean_correlation, rank_correlation
from pivot.tiny import procedural
from pivot.token_credit import CreditMap
from pivot.token_measures import MEASURES, METHODS, CreditedResponse, measure_responses
from pivot.types import Response

HOSTILE = "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 2'>"
ANSWER = "<think> Well, I read the picture first. </think> It is \\boxed{60}."


@pytest.fixture(scope="module")
def figure(tmp_path_factory):
    """A picture of the embedded world as a file with a hostile name."""
    path = tmp_path_factory.mktemp("credit") / "a<b>'\"&.png"
    procedural.make("angle", "test", 0).images[0].open().save(path)
    return path


def page_data(page: Path) -> dict:
    text = page.read_text(encoding="utf-8")
    (block,) = re.findall(r'<script type="application/json" id="group-data">(.*?)</script>', text, re.DOTALL)
    return json.loads(block)[0]


def test_an_image_and_a_question(tmp_path, capsys, figure):
    (tmp_path / "answer.txt").write_text(ANSWER)
    out = tmp_path / "new" / "page.html"
    command = [
        "credit",
        "--model",
        "tiny",
        "--image",
        str(figure),
        "--question",
        "What is x?",
        "--answer",
        "60",
    ]
    options = [
        "--samples",
        "2",
        "--max-tokens",
        "24",
        "--seed",
        "1",
        "--response",
        str(tmp_path / "answer.txt"),
    ]
    assert main([*command, *options, "--out", str(out)]) == 0
    assert str(out) in capsys.readouterr().out
    found = page_data(out)
    assert [measure["key"] for measure in found["measures"]] == [measure.key for measure in MEASURES]
    assert [response["given"] for response in found["responses"]] == [False, False, True]
    given = found["responses"][-1]
    assert "".join(given["tokens"]).startswith(ANSWER)
    assert given["correct"] is True
    for response in found["responses"]:
        assert all(len(values) == len(response["tokens"]) for values in response["values"].values())
    text = out.read_text(encoding="utf-8")
    # The image, PIVOT's, VPPO's and PAPO's corruption of it; PGPO hides it.
    assert text.count('src="data:image/png;base64,') == 4
    assert "hidden from attention" in text
    assert main([*command, *options, "--out", str(tmp_path / "again.html")]) == 0
    assert page_data(tmp_path / "again.html") == found, "a seed fixes the page"


def test_values_are_those_of_the_training_parts(policy):
    """Against the engine of a run and the visual part of each preset, response by response."""
    prompt = policy.encoder.encode(procedural.make("angle", "test", 0))
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(0, 250, (n,), generator=generator) for n in (5, 9)]
    responses = [Response(y, "", None, None, truncated=False) for y in ids]
    found, views = measure_responses(policy, Config(), prompt, responses)
    assert [view.methods for view in views] == [("pivot",), ("vppo",), ("papo",), ("pgpo",)]
    units = [PromptWithResponses(prompt, ids)]
    for name in ("pivot", "vppo", "papo", "pepo", "pgpo"):
        method = PRESETS[name]
        engine = LocalEngine(pivot.Config(method=method), policy)
        clean = engine.score(ScoreRequest(units, 0, "clean", with_similarity=method.needs_similarity))
        q_BT = engine.score(ScoreRequest(units, 0, "corrupted")).logprobs_BT
        zeros, p_BT = torch.zeros(2), clean.logprobs_BT
        batch = Batch(clean.mask_BT, zeros, zeros, 2, p_BT, clean.entropy_BT, p_BT, q_BT, clean.similarity_BT)
        if name == "pivot":
            _, _, parts = method.visual(batch, zeros)
            expected = {"support": parts.support_BT, "future": parts.future_BT, "utility": parts.utility_BT}
        elif name in ("vppo", "papo"):
            k3_BT = (torch.expm1(q_BT - p_BT) - (q_BT - p_BT)).clamp(max=10)
            expected = {name: k3_BT}
        else:
            advantage_BT, _, _ = method.visual(batch, torch.ones(2))
            expected = {name: advantage_BT}
        for key, values_BT in expected.items():
            for row, response in enumerate(found):
                stored = values_BT[row, : len(ids[row])].tolist()
                assert response.values[key] == pytest.approx(stored, abs=1e-4), key
    kept = found[1].kept
    assert sum(kept) == 4, "ceil(0.4 * 9)"
    assert min(v for v, k in zip(found[1].values["vppo"], kept, strict=True) if k) >= max(
        v for v, k in zip(found[1].values["vppo"], kept, strict=True) if not k
    )


def test_hostile_text_stays_text(tmp_path, figure):
    """In the question, the answer, a response, a model's name and the name of a file."""
    (tmp_path / "answer.txt").write_text(HOSTILE)
    out = tmp_path / "page.html"
    command = [
        "credit",
        "--model",
        "tiny",
        "--image",
        str(figure),
        "--question",
        HOSTILE,
        "--answer",
        HOSTILE,
    ]
    assert (
        main(
            [*command, "--methods", "entropy", "--response", str(tmp_path / "answer.txt"), "--out", str(out)]
        )
        == 0
    )
    text = out.read_text(encoding="utf-8")
    assert "<script>window" not in text
    assert "<img src=x" not in text
    assert HOSTILE in unescape(text)
    assert "".join(page_data(out)["responses"][0]["tokens"]).startswith(HOSTILE)
    tokens = (HOSTILE, "\n")
    response = CreditedResponse(tokens, {"entropy": [2.0, 1.0]}, [-1.0, -2.0])
    html = credit_page(
        CreditMap(HOSTILE, HOSTILE, HOSTILE, (MEASURES[-1],), (response,), facts={"x": HOSTILE})
    ).html()
    assert html.count("<script>") == 1
    assert "<img src=x" not in html


def test_rank_correlations_by_hand():
    assert rank_correlation([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    # Ranks 1.5, 1.5, 3 and 1, 2, 3: covariance 1.5, deviations sqrt(1.5) and sqrt(2).
    assert rank_correlation([5, 5, 7], [1, 2, 3]) == pytest.approx(1.5 / 3**0.5)
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None
    values = {"support": [1.0, 2.0, 3.0], "entropy": [1.0, 1.0, 1.0], "utility": [3.0, 2.0, 1.0]}
    found = CreditMap("m", "q", "", MEASURES, (CreditedResponse(("a", "b", "c"), values, [0.0] * 3),))
    by_key = {measure.key: measure for measure in MEASURES}
    assert mean_correlation(found, by_key["support"], by_key["utility"]) == pytest.approx(-1)
    assert mean_correlation(found, by_key["support"], by_key["entropy"]) is None


def test_from_python(figure):
    found = pivot.credit(
        "tiny", image=figure, question="What is x?", response=ANSWER, methods=["pepo"], answer="9"
    )
    (response,) = found.responses
    assert [measure.key for measure in found.measures] == ["pepo"]
    assert sum(response.values["pepo"]) == pytest.approx(len(response.tokens), rel=1e-4)
    assert response.reward is not None
    assert not response.reward.correct


def test_another_family(tmp_path, figure):
    build_folder = runpy.run_path(str(Path(__file__).parents[1] / "models" / "families.py"))["build_folder"]
    folder = build_folder(tmp_path / "smolvlm", "smolvlm")
    out = tmp_path / "page.html"
    command = ["credit", "--model", str(folder), "--image", str(figure), "--image", str(figure)]
    assert (
        main([*command, "--question", "Same?", "--samples", "1", "--max-tokens", "8", "--out", str(out)]) == 0
    )
    assert page_data(out)["responses"][0]["correct"] is None
    assert out.read_text().count('src="data:image/') == 8, "two images, four times"


def test_a_real_row(tmp_path, shared_data):
    file = shared_data / "geometry3k" / "train.parquet"
    out = tmp_path / "page.html"
    command = ["credit", "--model", "tiny", "--data", str(file), "--samples", "1", "--max-tokens", "8"]
    assert main([*command, "--row", "2", "--methods", "pivot,entropy", "--out", str(out)]) == 0
    (prompt,) = re.findall(r"<dt>Prompt</dt><dd>(.*?)</dd>", out.read_text(encoding="utf-8"))
    assert page_data(out)["responses"][0]["correct"] is not None
    other = tmp_path / "other.html"
    assert main([*command, "--id", prompt, "--methods", "pivot,entropy", "--out", str(other)]) == 0
    assert page_data(other) == page_data(out)


IMAGE = ["--image", "IMAGE", "--question", "x?"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--question", "x?"], "there is no image; give one with --image FILE"),
        (["--image", "IMAGE"], "there is no question; give it with --question TEXT."),
        (["--image", "nowhere.png", "--question", "x?"], "there is no image file nowhere.png"),
        ([*IMAGE, "--methods", "pivto"], "there is no measure of tokens by 'pivto'; the nearest is pivot"),
        (
            [*IMAGE, "--response", "nowhere.txt"],
            "--response nowhere.txt cannot be read: no such file or directory.",
        ),
        ([*IMAGE, "--samples", "0"], "--samples is 0; it must be at least 1."),
        ([*IMAGE, "--row", "1"], "--row is for a data set; name it with --data."),
        ([*IMAGE, "--out", "."], "--out . is a folder; name the file of the page"),
        ([*IMAGE, "--data", "tiny"], "--data brings its own image and question"),
        (
            ["--data", "tiny", "--row", "1", "--id", "x"],
            "--row and --id both choose a row; give one of them.",
        ),
        (["--data", "tiny", "--id", "x"], "tiny has no usable row with the id 'x'"),
        (["--data", "tiny", "--row", "-1"], "--row is -1; rows are counted from 0."),
    ],
)
def test_a_mistake_is_one_sentence(capsys, figure, arguments, sentence):
    given = [str(figure) if word == "IMAGE" else word for word in arguments]
    assert main(["credit", "--model", "tiny", *given]) == 2
    said = capsys.readouterr().err
    assert said.startswith("pivot credit: ")
    assert sentence in said
    assert said.count("\n") == 1


def test_a_question_without_an_image_has_nothing_to_measure(tmp_path, capsys):
    row = {"id": "text", "question": "How much is 2 + 2?", "answer": "4"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    assert main(["credit", "--model", "tiny", "--data", str(tmp_path / "rows.jsonl")]) == 2
    assert "the question has no image" in capsys.readouterr().err


def test_every_measure_belongs_to_a_method():
    assert set(METHODS) - {"entropy"} <= set(PRESETS)
