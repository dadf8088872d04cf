import json
import re

import numpy as np
import pytest
from PIL import Image

from pivot.report import write_report
from pivot.report.evaluations import category_table, evaluation_charts, evaluation_table
from pivot.report.figures import save_figures
from pivot.report.page import data_block
from pivot.report.panels import (
    TRAINING,
    line_charts,
    phase_shares,
    phase_times,
    success_histogram,
)
from pivot.report.run import read_run
from pivot.report.tokens import (
    LINE_LENGTH,
    TITLE_LENGTH,
    _lines,
    decode,
    save_token_figures,
    select_groups,
    token_figure,
)

HOSTILE = (
    "</script><script>window.broken = 1</script></style><img src=x onerror='window.broken = 2'>&amp;\u2028"
)


def test_a_thousand_steps_stay_small_and_fetch_nothing(new_run):
    page = write_report(new_run("long", steps=1000), figures=False)
    text = page.read_text()
    assert page.stat().st_size < 5_000_000
    assert re.search(r"(src|href)=\"(https?:)?//", text) is None
    assert "@import" not in text
    assert "default-src 'none'" in text


@pytest.mark.parametrize(
    "piece", ["config.json", "run.json", "metrics.jsonl", "rollouts.jsonl", "eval/scores.json"]
)
def test_a_folder_without_one_piece_says_so(new_run, piece):
    folder = new_run("a", steps=10)
    (folder / piece).unlink()
    text = write_report(folder, figures=False).read_text()
    assert f"<li>{piece} is missing" in text
    assert ('id="training"' in text) == (piece != "metrics.jsonl")
    assert ('id="tokens"' in text) == (piece != "rollouts.jsonl")
    assert ('id="evaluation"' in text) == (piece != "eval/scores.json")


@pytest.mark.parametrize(
    "piece", ["config.json", "run.json", "metrics.jsonl", "rollouts.jsonl", "eval/scores.json"]
)
def test_one_piece_alone_is_enough_for_a_page(new_run, piece):
    folder = new_run("a", steps=10)
    for other in {"config.json", "run.json", "metrics.jsonl", "rollouts.jsonl", "eval/scores.json"} - {piece}:
        (folder / other).unlink()
    assert write_report(folder, figures=False).read_text().count("is missing") == 4


def test_a_run_of_one_step_and_one_without_any(new_run):
    folder = new_run("one", steps=1)
    assert "step 1 of 1" in write_report(folder, figures=False).read_text()
    (folder / "metrics.jsonl").write_text("")
    assert "step 0 of 1" in write_report(folder, figures=False).read_text()


def test_a_running_and_a_failed_run_say_so(new_run):
    folder = new_run("a", steps=10)
    (folder / "run.json").write_text(json.dumps({"status": "running"}))
    assert "Still running, or killed; its last step" in write_report(folder, figures=False).read_text()
    (folder / "run.json").write_text(json.dumps({"status": "failed", "reason": "out of memory <here>"}))
    assert "It failed: out of memory &lt;here&gt;" in write_report(folder, figures=False).read_text()


def test_hostile_text_is_escaped_wherever_it_may_stand(new_run):
    folder = new_run("a", steps=10, method=HOSTILE, train__note=HOSTILE)
    (folder / "run.json").write_text(json.dumps({"status": HOSTILE, "command": HOSTILE, HOSTILE: "x"}))
    scores = json.loads((folder / "eval" / "scores.json").read_text())
    for evaluation in scores["evaluations"]:
        evaluation |= {"name": HOSTILE, "when": HOSTILE}
    (folder / "eval" / "scores.json").write_text(json.dumps(scores))
    text = write_report(folder, figures=False).read_text()
    assert "window.broken" in text
    assert "<script>window.broken" not in text
    assert "<img src=x" not in text
    assert text.count("</script>") == 3
    assert text.count("</style>") == 1


def test_a_data_block_comes_back_as_it_went_in():
    block = data_block("x", {"text": HOSTILE})
    inside = block.removeprefix('<script type="application/json" id="x">').removesuffix("</script>")
    assert "<" not in inside
    assert json.loads(inside) == {"text": HOSTILE}


def test_methods_without_utility_have_a_page_with_what_they_logged(new_run):
    text = write_report(new_run("d", steps=20, method="dapo"), figures=False).read_text()
    assert 'id="buffer"' not in text
    assert 'id="tokens"' in text
    assert "Visual support" not in text


def test_phases_add_up_and_the_histogram_is_a_share(new_run):
    run = read_run(new_run("a", steps=300))
    shares = phase_shares(run)
    assert sum(share for _, _, share in shares) == pytest.approx(1)
    assert sum(s for _, s, _ in shares) == pytest.approx(run.series("time/step").values.mean())
    (heat,) = success_histogram(run)
    assert heat.shares.shape == (10, 120)
    assert np.allclose(heat.shares.sum(axis=0), 1)


def test_evaluations_as_tables_by_hand(new_run):
    run = read_run(new_run("a", steps=10, gain=0.4))
    rows = {row.label: row.values for row in evaluation_table(run).rows}
    assert rows["tiny-test, after"] == pytest.approx(
        (60.0, "57.00 to 63.00", "88.00 (k = 8)", 98.0, 61.2, 200, 8)
    )
    categories = category_table(run)
    assert [column.name for column in categories.columns] == ["before, %", "after, %"]
    assert [(row.label, row.rule_above) for row in categories.rows] == [
        ("tiny-test, angle", False),
        ("tiny-ood, angle", True),
    ]
    assert categories.rows[0].values == pytest.approx((28.0, 60.0))


def test_charts_carry_the_logged_numbers(new_run):
    run = read_run(new_run("a", steps=30))
    charts = {chart.name: chart for chart in line_charts(run, TRAINING)}
    accuracy = charts["training-accuracy"]
    assert accuracy.curves[0].values.tolist() == [m["reward/accuracy"] for m in run.metrics]
    assert accuracy.marks == ((7.0, "replay starts"),)
    estimates = evaluation_charts(run)[0].rows[0][1]
    assert [(e.label, e.hollow) for e in estimates] == [
        ("before", False),
        ("after", False),
        ("before", True),
        ("after", True),
    ]


def test_figures_are_written_twice_alike_as_svg_and_pdf(new_run, tmp_path):
    run = read_run(new_run("a", steps=15))
    charts = [
        line_charts(run, TRAINING)[0],
        *success_histogram(run),
        *phase_times(run),
        evaluation_charts(run)[0],
    ]
    first = [path.read_bytes() for path in save_figures(charts, tmp_path / "x")]
    again = [path.read_bytes() for path in save_figures(charts[:1], tmp_path / "y")]
    assert first[:2] == again
    assert [text[:4] for text in first[1::2]] == [b"%PDF"] * 4
    assert all(b"<svg" in text for text in first[::2])


def test_the_token_figure_of_hostile_tokens(new_run, tmp_path):
    groups = select_groups(read_run(new_run("a", steps=15)))[:1]
    for response in groups[0]["responses"]:
        response["tokens"][0] = "$x^2$ \x00\t" + "long" * 60
        response["extracted"] = "the answer\n" * 20
    titles = [text.get_text() for axes in token_figure(groups[0]).axes for text in axes.texts]
    said = [title for title in titles if "response, answer the answer" in title]
    assert said
    assert all(len(title) == TITLE_LENGTH and title.endswith("…") and "\n" not in title for title in said)
    assert [path.name for path in save_token_figures(groups, tmp_path)] == ["tokens-1.svg", "tokens-1.pdf"]


def test_lines_of_tokens_keep_every_letter_and_their_length():
    tokens = ["ab", " cd\n\nef", "x" * 200, " tail"]
    lines = list(_lines(tokens))
    assert all(sum(len(text) for _, _, text in line) <= LINE_LENGTH for line in lines)
    assert (
        "".join(text for line in lines for _, _, text in line).replace(" ", "")
        == "abcdef" + "x" * 200 + "tail"
    )
    assert lines[1] == []
    assert all(
        column == sum(len(t) for _, _, t in line[:i])
        for line in lines
        for i, (_, column, _) in enumerate(line)
    )


def test_embedded_images_are_decoded_and_damaged_ones_are_white(new_run):
    image = select_groups(read_run(new_run("a", steps=15)))[0]["images"][0]
    assert decode(image).shape[:2] == (196, 224)
    assert decode("data:image/png;base64,AAAA").min() == 1
    assert Image.fromarray((decode(image)[..., :3] * 255).astype(np.uint8)).size == (224, 196)


def test_an_evaluation_with_other_settings_has_a_note_in_the_runs_table(new_run):
    folder = new_run("a", steps=4)
    path = folder / "eval" / "scores.json"
    scores = json.loads(path.read_text())
    assert not evaluation_table(read_run(folder)).has_notes
    for entry in scores["evaluations"]:
        entry["settings"] = {"grader": "pivot", "min_pixels": 3136, "max_pixels": 12544}
    later = scores["evaluations"][1] | {"when": "step-4", "samples": 2}
    later["settings"] = later["settings"] | {"grader": "mathruler"}
    scores["evaluations"].append(later)
    path.write_text(json.dumps(scores))
    notes = {row.label: row.note for row in evaluation_table(read_run(folder)).rows if row.note}
    assert notes == {"tiny-test, step-4": "grader mathruler (others pivot); samples 2 (others 8)"}
    assert 'class="note">grader mathruler' in write_report(folder, figures=False).read_text()


def test_the_footer_mentions_figures_only_if_there_are_any(new_run):
    folder = new_run("r", steps=3)
    assert "figures/" not in write_report(folder, figures=False).read_text()
    assert not (folder / "figures").exists()
    assert "figures/" in write_report(folder).read_text()
    assert any((folder / "figures").iterdir())


def test_image_marks_of_a_question_are_shown(new_run):
    folder = new_run("r", steps=5)
    lines = [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]
    for line, question in zip(
        lines, ["<image>Find x.", "Is <image> like <image>?"] * len(lines), strict=False
    ):
        line["question"] = question
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shown = {group["question"] for group in select_groups(read_run(folder))}
    assert shown <= {"[image] Find x.", "Is [image 1] like [image 2]?"}
    assert shown
