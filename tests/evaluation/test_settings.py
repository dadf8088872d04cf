"""Rows of a table that were measured differently from the rest get a note."""

import pytest

from pivot.evaluation.sampling import evaluation_request
from pivot.evaluation.settings import ASPECTS, UNKNOWN, EvaluationSettings, comparability_notes, recorded

SETTINGS = recorded(EvaluationSettings(evaluation_request(), min_pixels=200704, max_pixels=1003520))


def entry(samples=8, prompts=601, **settings):
    return {"samples": samples, "prompts": prompts, "settings": SETTINGS | settings}


def old(samples=8, prompts=601):
    """As versions before the settings were recorded wrote it."""
    return {"samples": samples, "prompts": prompts}


def notes(*entries):
    return comparability_notes([{"geometry3k": [each]} for each in entries])


def test_rows_that_were_measured_alike_have_no_note():
    assert notes(entry(), entry(seed=5), entry(model="9f2c")) == ["", "", ""]
    assert comparability_notes([]) == []


def test_a_sampler_that_an_older_version_recorded_is_read_by_its_name_of_today():
    assert notes(entry(), entry(engine="embedded")) == ["", ""]


def test_the_row_that_differs_from_most_names_what():
    other = entry(min_pixels=3136, max_pixels=12845056, grader="mathruler")
    said = "image limits 3136 to 12845056 pixels (others 200704 to 1003520 pixels); grader mathruler (others pivot)"
    assert notes(entry(), other, entry()) == ["", said, ""]


def test_without_a_majority_each_row_says_its_own():
    assert notes(entry(samples=8), entry(samples=4)) == ["samples 8 (others 4)", "samples 4 (others 8)"]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (entry(template="00ff"), f"template 00ff (others {SETTINGS['template']})"),
        (entry(prompts=200), "prompts 200 (others 601)"),
        (entry(max_tokens=96), f"response limit 96 (others {SETTINGS['max_tokens']})"),
        (entry(temperature=0.5), "temperature 0.5 (others 1.0)"),
        (entry(top_p=0.9), "top_p 0.9 (others 1.0)"),
        (entry(top_k=5), "top_k 5 (others 0)"),
        (entry(dtype="bfloat16"), "dtype bfloat16 (others float32)"),
        (entry(engine="vllm"), "sampler vllm (others native)"),
        (
            entry(min_pixels=None, max_pixels=None),
            "image limits of the model's files (others 200704 to 1003520 pixels)",
        ),
    ],
)
def test_everything_that_a_score_depends_on_counts(other, said):
    assert notes(entry(), entry(), other) == ["", "", said]


def test_every_recorded_setting_but_the_draw_is_compared():
    others = {name: f"other {name}" for name in SETTINGS if name not in ("blank", "seed", "samples")}
    for name, value in others.items():
        assert notes(entry(), entry(), entry(**{name: value}))[2], name
    assert len(ASPECTS) == len(others) - 1 + 2, (
        "two pixel limits are one aspect; counts stand in the entry itself"
    )


def test_old_entries_are_unknown_beside_new_ones_and_silent_among_themselves():
    assert notes(old(), old(), old()) == ["", "", ""]
    assert notes(old(), old(), entry()) == [UNKNOWN, UNKNOWN, ""]
    assert notes(old(samples=4), old(), old()) == ["samples 4 (others 8)", "", ""]


def test_sets_are_compared_one_by_one():
    rows = [
        {"geometry3k": [entry()], "mmk12": [entry(prompts=2000)]},
        {"geometry3k": [entry()], "mmk12": [entry(prompts=2000)]},
        {"geometry3k": [entry(grader="mathruler")], "mmk12": [entry(prompts=90, grader="mathruler")]},
        {"mmk12": [entry(prompts=2000)]},
    ]
    assert comparability_notes(rows) == [
        "",
        "",
        "grader mathruler (others pivot); prompts 90 (others 2000) on mmk12",
        "",
    ]


def test_seeds_of_one_row_that_differ_are_said_even_where_it_stands_alone():
    row = {"geometry3k": [entry(), entry(grader="mathruler")]}
    assert comparability_notes([row]) == ["grader mathruler and pivot"]
    assert comparability_notes([{"geometry3k": [entry(), old()]}]) == [UNKNOWN]
