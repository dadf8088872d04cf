"""The files that runs of `small` read, and what is measured of their tokens."""

import json

import pytest

from experiments.headroom.look import main, shares, table
from experiments.headroom.panels import prompt
from experiments.headroom.sets import write_sets
from experiments.prompt_files import digest_of
from pivot.config import DataConfig
from pivot.config.datasets import load_set
from pivot.report.tables import to_markdown


def test_sets_are_read_as_they_were_written(tmp_path):
    digests = write_sets(tmp_path, {"train": 6, "ood": 3})
    assert digests == write_sets(tmp_path / "again", {"train": 6, "ood": 3})
    path = tmp_path / "panels-train.jsonl"
    read = load_set(str(path), DataConfig()).prompts
    for index, found in enumerate(read):
        drawn = prompt("train", index)
        assert found.id.endswith(drawn.id)
        assert (found.question, found.answer) == (drawn.question, drawn.answer)
        assert found.images[0].open().tobytes() == drawn.images[0].open().tobytes()
    path.write_text(path.read_text().replace("first", "frist"))
    assert digest_of(path) != digests["train"]


def test_shares_of_the_gradient_add_up():
    kinds = {
        "right": {"answer": [10, 0.5, 1.0], "words": [30, 0.0, 2.0]},
        "wrong": {"answer": [5, -0.25, 1.0]},
    }
    rows = shares(kinds)
    assert [row.label for row in rows] == [
        "answer, right responses",
        "words, right responses",
        "answer, wrong responses",
    ]
    assert [row.values for row in rows] == [(10, 0.5, 25.0), (30, 0.0, 50.0), (5, -0.25, 25.0)]
    shown = to_markdown(table("small", {"kinds": kinds, "dependency": [0.25, 0.75]}))
    assert "| answer, wrong responses | 5 | -0.250 | 25.0 |" in shown.replace("−", "-")
    assert "V(y) is 0.500" in shown


def test_a_models_tokens_are_looked_at(tmp_path, capsys):
    out = tmp_path / "look.json"
    assert main(["tiny-hard", "--prompts", "3", "--out", str(out)]) == 0
    found = json.loads(out.read_text())["tiny-hard"]
    assert len(found["dependency"]) == 3
    assert sum(entry[0] for kinds in found["kinds"].values() for entry in kinds.values()) > 100
    assert "wrong percept, wrong responses" in capsys.readouterr().out


def test_a_model_that_is_not_there_is_one_sentence(capsys):
    assert main(["no-such-model"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(SystemExit):
        main(["tiny", "--prompts", "0"])
