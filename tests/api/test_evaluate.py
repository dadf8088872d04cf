"""`pivot.evaluate`: the entries of `pivot eval`, rows in memory, and the same checks."""

import json

import pytest

import pivot
from pivot.cli import main
from pivot.errors import UserError


def test_the_entries_are_those_of_the_command(tmp_path, capsys):
    given = {"settings": {"max_tokens": 24}, "samples": 2, "limit": 3}
    (entry,) = pivot.evaluate("tiny", "tiny-test", out=tmp_path / "a", quiet=True, **given)
    command = ["eval", "--model", "tiny", "--benchmarks", "tiny-test", "--samples", "2", "--limit", "3",
               "--max-tokens", "24", "--quiet", "--out", str(tmp_path / "b")]  # fmt: skip
    assert main(command) == 0
    (stored,) = json.loads((tmp_path / "b" / "scores.json").read_bytes())["evaluations"]
    assert json.loads(json.dumps(entry)) == stored
    assert (entry["name"], entry["prompts"], entry["samples"]) == ("tiny-test", 3, 2)
    assert (tmp_path / "a" / "scores.json").is_file()
    capsys.readouterr()


def test_rows_in_memory(tmp_path, picture):
    rows = [{"images": picture().open(), "problem": "How many boxes?", "answer": "1"}] * 2
    entries = pivot.evaluate(
        "tiny", rows, samples=1, settings={"max_tokens": 8}, out=tmp_path / "eval", quiet=True
    )
    assert [(entry["name"], entry["prompts"]) for entry in entries] == [("memory", 2)]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"samples": 0}, "--samples is 0; it must be at least 1"),
        ({"limit": 0}, "--limit is 0"),
        ({"benchmarks": "geometry4k"}, "unknown benchmark 'geometry4k'"),
        ({"benchmarks": None}, "benchmarks is None, but must be names, or rows"),
        ({"settings": {"device": "gpu"}}, "the device is 'gpu', but must be auto, cpu, cuda or cuda:N"),
        ({"benchmarks": [3]}, "row 0 of data is a int"),
        ({"settings": {"dtype": "float16"}}, "--dtype invalid choice: 'float16'"),
        ({"settings": {"temprature": 1}}, "no setting 'temprature'; the nearest is temperature"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, arguments, sentence):
    given = {"benchmarks": "tiny-test", "samples": 1, "out": tmp_path} | arguments
    with pytest.raises(UserError) as refused:
        pivot.evaluate("tiny", given.pop("benchmarks"), quiet=True, **given)
    assert sentence in str(refused.value)
