import json

import pytest

from pivot import recipes
from pivot.cli import main
from pivot.config import apply_settings, to_dict
from pivot.evaluation.sets import SetOptions, read_set
from pivot.models.loading import load_policy, save_policy


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


def test_a_run_and_the_model_beside_it_see_images_of_the_runs_size(tmp_path, capsys, save_tiny):
    run = tmp_path / "run"
    save_tiny(run, 8)
    chosen = ["model.min_pixels=784", "model.max_pixels=3136", "rollout.max_tokens=8"]
    (run / "config.json").write_text(json.dumps(to_dict(apply_settings(recipes.get("tiny"), chosen))))
    out = tmp_path / "out"
    command = ["attention", "--model", "tiny", "--model", str(run), "--data", "tiny", "--limit", "2"]
    assert main([*command, "--out", str(out)]) == 0
    first, second = json.loads((out / "attention.json").read_text())["models"]
    assert first["image_limits"] == second["image_limits"] == [784, 3136]
    assert first["mean"] == second["mean"], "the same weights see the same"
    said = capsys.readouterr().out
    assert f"tiny: images of 784 to 3136 pixels, at most 8 tokens, float32 (as {run})" in said
    assert f"{run}: images of 784 to 3136 pixels, at most 8 tokens, float32 (its run)" in said
    assert main([*command, "--recipe", "tiny", "--out", str(out)]) == 0
    apart = json.loads((out / "attention.json").read_text())["models"]
    assert [model["image_limits"] for model in apart] == [[3136, 12544], [784, 3136]]
    assert apart[0]["mean"] != first["mean"]
    assert "images of 784 to 3136 pixels" in (out / "attention.svg").read_text()


def load_prompts(name, split, limit):
    return read_set(name, SetOptions({}, limit, split=split)).prompts


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
        (
            ["--model", "/nowhere/model", "--data", "tiny", "--limit", "1"],
            "the model folder /nowhere/model does not exist",
        ),
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
