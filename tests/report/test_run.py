import json

import numpy as np
import pytest

from pivot.errors import UserError
from pivot.report.run import read_row_at, read_rows, read_run


def test_a_whole_folder_has_no_gaps_and_gives_back_its_numbers(new_run):
    folder = new_run("a", steps=20)
    run = read_run(folder)
    written = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    series = run.series("reward/accuracy")
    assert run.gaps == []
    assert series.steps.tolist() == list(range(1, 21))
    assert series.values.tolist() == [line["reward/accuracy"] for line in written]
    assert (run.name, run.method, run.num_steps, run.setting("train.seed")) == ("a", "pivot", 20, 0)


def test_an_unfinished_last_line_is_left_out_and_said(new_run):
    folder = new_run("a", steps=5)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "reward/acc')
    run = read_run(folder)
    assert run.num_steps == 5
    assert run.gaps == [
        "metrics.jsonl ends in the middle of a line: the run was killed there, or is writing it."
    ]


def test_a_whole_last_line_without_its_newline_counts(new_run):
    folder = new_run("a", steps=5)
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().rstrip("\n"))
    run = read_run(folder)
    assert (run.num_steps, run.gaps) == (5, [])


def test_damaged_lines_are_counted_and_the_last_of_a_repeated_step_stands(tmp_path):
    lines = [
        "not json",
        '{"step": 2, "x": 1}',
        "[]",
        '{"step": 1, "x": 5}',
        '{"step": 2, "x": 3}',
        '{"x": 9}',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    run = read_run(tmp_path)
    assert run.series("x").steps.tolist() == [1, 2]
    assert run.series("x").values.tolist() == [5, 3]
    assert "metrics.jsonl has 2 unreadable lines, skipped here." in run.gaps


def test_values_that_are_no_finite_numbers_are_no_points(tmp_path):
    lines = [{"step": 1, "x": 1.0}, {"step": 2, "x": None}, {"step": 3, "x": True}, {"step": 4, "x": "7"}]
    text = "".join(json.dumps(line) + "\n" for line in lines) + '{"step": 5, "x": NaN}\n{"step": 6, "x": 2}\n'
    (tmp_path / "metrics.jsonl").write_text(text)
    assert np.array_equal(read_run(tmp_path).series("x").steps, [1, 6])


def test_each_missing_piece_is_named(new_run):
    folder = new_run("a", steps=3)
    for piece in ("run.json", "rollouts.jsonl"):
        (folder / piece).unlink()
    (folder / "config.json").write_text("{")
    gaps = " ".join(read_run(folder).gaps)
    assert "run.json is missing" in gaps
    assert "rollouts.jsonl is missing" in gaps
    assert "config.json is not a readable" in gaps


def test_evaluations_are_read_benchmark_by_benchmark(tmp_path):
    written = [("a", "before", False), ("b", "before", False), ("a", "before", True), ("a", "after", False)]
    entries = [{"name": n, "when": w, "blank": b, "accuracy": 0.5} for n, w, b in written]
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "scores.json").write_text(json.dumps({"evaluations": [*entries, {"name": "c"}, 5]}))
    run = read_run(tmp_path)
    read = [(e["name"], e["when"], e["blank"]) for e in run.evaluations]
    assert read == [
        ("a", "before", False),
        ("a", "after", False),
        ("a", "before", True),
        ("b", "before", False),
    ]
    assert "eval/scores.json has 2 entries without an accuracy." in run.gaps


def test_a_folder_of_something_else_is_a_users_mistake(tmp_path):
    with pytest.raises(UserError, match=r"is not a run's folder: it has none of config\.json"):
        read_run(tmp_path)
    with pytest.raises(UserError, match="is not a run's folder"):
        read_run(tmp_path / "nowhere")


def test_a_line_is_found_again_by_its_offset(new_run):
    run = read_run(new_run("a", steps=8))
    found = list(read_rows(run, "metrics.jsonl"))
    assert [read_row_at(run, "metrics.jsonl", offset) for offset, _ in found] == [line for _, line in found]


@pytest.mark.parametrize(
    ("name", "setting"), [("rollouts.jsonl", "rollouts_per_step"), ("eval/scores.json", "final_prompts")]
)
def test_a_file_that_the_configuration_switches_off_is_not_missing(new_run, name, setting):
    folder = new_run("a", steps=5)
    (folder / name).unlink()
    assert [gap for gap in read_run(folder).gaps if name in gap], "a run that should have written it"
    config = json.loads((folder / "config.json").read_text())
    config.setdefault("log" if setting == "rollouts_per_step" else "eval", {})[setting] = 0
    (folder / "config.json").write_text(json.dumps(config))
    assert read_run(folder).gaps == []
