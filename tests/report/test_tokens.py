import json

import numpy as np
import pytest

from pivot.report import tokens
from pivot.report.run import read_run
from pivot.report.tokens import select_groups, shrink, summarise_group


def lines_of(folder):
    return [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]


def write(folder, lines):
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_summary_by_hand():
    response = {"tokens": ["a", "b", "c"], "correct": True, "utility": [0.0, 0.5, 1.0], "dependency": 0.2}
    other = {"tokens": ["a"], "correct": False, "utility": [0.5], "dependency": 0.7}
    line = {"step": 3, "prompt_id": "p", "responses": [response, other]}
    found = summarise_group(17, line)
    assert found is not None
    assert (found.offset, found.step, found.prompt_id, found.mixed, found.dependency) == (
        17,
        3,
        "p",
        True,
        0.7,
    )
    # Sorted 0, .5, .5, 1: the 5% quantile lies at index 0.15, the 95% one at 2.85.
    assert np.isclose(found.spread, 0.925 - 0.075)


@pytest.mark.parametrize(
    "line", [{}, {"step": 1}, {"step": 1, "responses": 5}, {"step": 1, "responses": [{"tokens": []}]}]
)
def test_lines_without_a_group_are_passed_over(line):
    assert summarise_group(0, line) is None


def test_the_gallery_begins_with_the_largest_spread_of_a_mixed_group(new_run):
    folder = new_run("a", steps=20)
    groups = select_groups(read_run(folder))
    spreads = [summarise_group(0, line).spread for line in lines_of(folder)]
    assert len(groups) == len(spreads)
    assert groups[0]["spread"] == pytest.approx(max(spreads), rel=1e-3)
    assert [g["spread"] for g in groups] == sorted((g["spread"] for g in groups), reverse=True)


def test_groups_stay_within_their_number_their_bytes_and_two_a_prompt(new_run, monkeypatch):
    folder = new_run("a", steps=20)
    lines = lines_of(folder)
    write(folder, [line | {"step": i, "prompt_id": f"p{i % 20}"} for i in range(12) for line in lines])
    groups = select_groups(read_run(folder))
    assert len(groups) == tokens.MOST_GROUPS
    assert max(sum(g["id"] == h["id"] for h in groups) for g in groups) <= tokens.MOST_PER_PROMPT
    monkeypatch.setattr(tokens, "MOST_BYTES", 100_000)
    few = select_groups(read_run(folder))
    assert 0 < len(json.dumps(few)) < 105_000
    monkeypatch.setattr(tokens, "MOST_BYTES", 100)
    run = read_run(folder)
    assert select_groups(run) == []
    assert run.gaps == ["rollouts.jsonl has no group that is small enough for this page."]


def test_a_group_keeps_few_responses_of_each_outcome_and_says_how_many_there_were(new_run):
    line = lines_of(new_run("a", steps=20))[0]
    one = line["responses"][0]
    line["responses"] = [one | {"correct": i < 6} for i in range(8)]
    group = shrink(line, summarise_group(0, line))
    assert [r["correct"] for r in group["responses"]] == [True] * 3 + [False] * 2
    assert (group["numCorrect"], group["numResponses"]) == (6, 8)


def test_links_and_foreign_kinds_of_images_are_left_out(new_run):
    line = lines_of(new_run("a", steps=20))[0]
    good = line["images"][0]
    line["images"] = [
        "https://example.org/x.png",
        "data:text/html;base64,PHN2Zz4=",
        good + '" onerror="x',
        7,
        good,
    ]
    assert shrink(line, summarise_group(0, line))["images"] == [good]


def test_token_numbers_of_another_length_or_kind_are_left_out(new_run):
    line = lines_of(new_run("a", steps=20))[0]
    line["responses"][0] |= {"utility": [0.1], "support": ["x"] * len(line["responses"][0]["tokens"])}
    line["responses"] = line["responses"][:1]
    shown = shrink(line, summarise_group(0, line))["responses"][0]
    assert "utility" not in shown
    assert "support" not in shown
    assert len(shown["gate"]) == len(shown["tokens"])
