import json

import pytest

from pivot.cli import main
from pivot.cli.attention import load_prompts
from pivot.policy.loading import load_policy, save_policy


def test_two_models_in_one_figure(tmp_path, capsys):
    other = load_policy("tiny")
    for parameter in other.model.model.language_model.layers[0].self_attn.q_proj.parameters():
        parameter.data.zero_()
    save_policy(other, tmp_path / "other")
    out = tmp_path / "out"
    models = ["--model", "tiny", "--model", str(tmp_path / "other")]
    assert (
        main(["attention", *models, "--data", "tiny", "--limit", "3", "--max-tokens", "8", "--out", str(out)])
        == 0
    )
    said = capsys.readouterr().out
    assert all(str(out / f"attention.{end}") in said for end in ("svg", "pdf", "png", "json"))
    numbers = json.loads((out / "attention.json").read_text())
    assert [model["model"] for model in numbers["models"]] == ["tiny", str(tmp_path / "other")]
    assert list(numbers["models"][0]["by_prompt"]) == ["angle/test/0", "count/test/0", "bars/test/0"]
    first, second = (model["mean"] for model in numbers["models"])
    assert first != second
    assert f"tiny: {first[0]:.1%}" in said


def test_procedural_splits_by_name():
    assert [p.id for p in load_prompts("tiny", None, 2)] == ["angle/test/0", "count/test/0"]
    assert [p.id for p in load_prompts("tiny-ood", None, 1)] == ["angle/ood/0"]
    assert [p.id for p in load_prompts("tiny", "validation", 1)] == ["angle/validation/0"]


def test_any_data_set_with_images(shared_data):
    file = next((shared_data / "geometry3k").rglob("*.parquet"))
    prompts = load_prompts(str(file), None, 2)
    assert len(prompts) == 2
    assert all(prompt.images for prompt in prompts)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--model", "tiny", "--data", "tinyy"], "unknown data set 'tinyy'"),
        (["--model", "tiny", "--data", "tiny", "--limit", "0"], "--limit is 0; it must be at least 1"),
        (["--model", "tiny", "--data", "tiny", "--samples", "0"], "--samples is 0; it must be at least 1"),
        (["--model", "tiny", "--model", "tiny", "--data", "tiny"], "--model tiny is given twice"),
        (["--model", "/nowhere/model", "--data", "tiny", "--limit", "1"], "cannot load the model"),
    ],
)
def test_mistakes_are_one_sentence(capsys, tmp_path, arguments, sentence):
    assert main(["attention", *arguments, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"pivot attention: {sentence}")
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_set_without_images_is_refused(capsys, tmp_path):
    (tmp_path / "sums.jsonl").write_text('{"problem": "How much is 2 + 2?", "answer": "4"}\n')
    assert main(["attention", "--model", "tiny", "--data", str(tmp_path / "sums.jsonl")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("pivot attention: ")
    assert said.count("\n") == 1
