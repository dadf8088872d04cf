"""Recipes, and the order in which the parts of a command line count."""

import argparse
import json
from dataclasses import replace

import pytest

from pivot import recipes
from pivot.cli.configuring import from_arguments, resolve
from pivot.cli.options import add_arguments
from pivot.config import Config, apply_settings, from_dict, to_dict
from pivot.config.validation import problems
from pivot.errors import UserError
from pivot.method import PRESETS


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_is_valid_and_knows_its_name(name):
    config = recipes.get(name)
    assert list(problems(config)) == []
    assert config.recipe == name
    assert config.method == PRESETS["pivot"]


@pytest.mark.parametrize(
    ("name", "responses", "steps", "model"),
    [("geo3k-3b", 5, 75, "3B"), ("geo3k-7b", 8, 75, "7B"), ("virl39k-3b", 5, 202, "3B")],
)
def test_the_papers_numbers(name, responses, steps, model):
    config = recipes.get(name)
    assert config.model.path == f"Qwen/Qwen2.5-VL-{model}-Instruct"
    assert config.rollout.responses == responses
    train = config.train
    assert (train.steps, train.prompts_per_step, train.minibatch_prompts) == (steps, 384, 128)
    assert (train.lr, train.weight_decay, train.grad_clip) == (1e-6, 0.01, 1.0)
    assert (config.model.min_pixels, config.model.max_pixels) == (200704, 1003520)
    rollout = config.rollout
    assert (rollout.temperature, rollout.top_p, rollout.max_tokens, rollout.max_prompt_tokens) == (
        1.0,
        0.99,
        2048,
        4096,
    )
    assert rollout.recompute_logprobs


def test_an_unknown_recipe_names_the_nearest():
    with pytest.raises(UserError, match=r"^There is no recipe 'geo3k'; the nearest is geo3k-[37]b\.$"):
        recipes.get("geo3k")


def test_later_parts_win(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(
        "train: {steps: 11, seed: 12, lr: 0.5, weight_decay: 0.25}\nmethod: {name: vaa, beta: 0.2}\n"
    )
    settings = ["train.seed=4", "method.clip_low=0.1"]
    config = resolve("tiny", config_file=file, method="papo", seed=3, settings=settings)
    assert config.rollout == recipes.get("tiny").rollout
    assert (config.train.steps, config.train.seed, config.train.lr) == (11, 4, 0.5)
    assert config.method == PRESETS["papo"].with_settings(clip_low=0.1)


def test_every_shortcut_reaches_its_setting():
    config = resolve("tiny", method="ser", corruption="gaussian", steps=7, seed=8, model="m", data="d")
    assert config.method == PRESETS["ser"]
    assert config.corruption.kind == "gaussian"
    assert (config.train.steps, config.train.seed) == (7, 8)
    assert (config.model.path, config.data.train) == ("m", "d")


def test_a_file_may_name_its_recipe(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("recipe: geo3k-3b\ntrain: {steps: 3}\n")
    start = recipes.get("geo3k-3b")
    assert resolve(config_file=file) == replace(start, train=replace(start.train, steps=3))
    with pytest.raises(UserError, match="--recipe is 'tiny'; give only one of them"):
        resolve("tiny", config_file=file)


@pytest.mark.parametrize("recipe", ["tiny", "custom", "made-in-python"])
def test_a_runs_config_starts_the_same_run_again(recipe, tmp_path):
    config = replace(Config(), recipe=recipe, train=replace(Config().train, steps=9))
    (tmp_path / "config.json").write_text(json.dumps(to_dict(config)))
    assert resolve(config_file=tmp_path / "config.json") == config


def test_an_incomplete_file_cannot_name_an_unknown_recipe(tmp_path):
    (tmp_path / "run.yaml").write_text("recipe: tinny\n")
    with pytest.raises(UserError, match="There is no recipe 'tinny'; the nearest is tiny"):
        resolve(config_file=tmp_path / "run.yaml")


def test_command_line_options_become_a_configuration():
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    words = "--recipe tiny-hard --method dapo --steps 5 --set train.lr=1e-3 --set eval.every=0"
    config = from_arguments(parser.parse_args(words.split()))
    assert config == resolve("tiny-hard", method="dapo", steps=5, settings=["train.lr=1e-3", "eval.every=0"])
    assert from_arguments(parser.parse_args([])) == recipes.get("tiny")


def test_without_a_recipe_it_follows_the_model(tmp_path):
    parser = argparse.ArgumentParser()
    add_arguments(parser)

    def chosen(words):
        return from_arguments(parser.parse_args(words.split()), needs_data=True)

    real = chosen("--model Qwen/Qwen2.5-VL-3B-Instruct --data my.jsonl")
    assert real.recipe == "default"
    assert (real.train.lr, real.model.dtype, real.model.gradient_checkpointing) == (1e-6, "bfloat16", True)
    assert (real.rollout.max_tokens, real.data.size, real.data.train) == (2048, None, "my.jsonl")
    tiny = chosen("--data my.jsonl")
    assert (tiny.recipe, tiny.data.size, tiny.train.lr) == ("tiny", None, 2e-4)
    assert chosen("--model tiny-hard --data my.jsonl").recipe == "tiny"
    assert chosen("--set model.path=Qwen/Qwen2.5-VL-3B-Instruct --data my.jsonl").recipe == "default"
    named = chosen("--recipe geo3k-3b --model Qwen/Qwen2.5-VL-7B-Instruct")
    assert (named.recipe, named.data.train) == ("geo3k-3b", "geometry3k")
    for size, recipe in ((1000, "tiny"), (60 * 10**6, "default")):
        (tmp_path / "config.json").write_text("{}")
        with (tmp_path / "model.safetensors").open("wb") as weights:
            weights.truncate(size)
        assert chosen(f"--model {tmp_path} --data my.jsonl").recipe == recipe


def test_steps_and_epochs_replace_each_other():
    by_epochs = apply_settings(Config(), ["train.epochs=15"])
    assert by_epochs.train.epochs == 15
    assert apply_settings(by_epochs, ["train.steps=9"]).train == replace(
        by_epochs.train, epochs=None, steps=9
    )
    stored = from_dict(to_dict(replace(by_epochs, train=replace(by_epochs.train, steps=30))))
    assert (stored.train.steps, stored.train.epochs) == (30, 15)


def test_one_set_or_several():
    several = apply_settings(Config(), ["data.train=[a.jsonl, virl39k]", "data.weights=[3, 1]"])
    assert several.data.sets == ("a.jsonl", "virl39k")
    assert from_dict(to_dict(several)) == several
    assert apply_settings(Config(), ["data.train=a.jsonl,virl39k"]).data == replace(several.data, weights=())
    old = from_dict({"data": {"train": "a.jsonl", "size": 512, "image_column": "images"}})
    assert (old.data.sets, old.data.size, old.data.holdout) == (("a.jsonl",), 512, 0.0)
    assert to_dict(old)["data"]["train"] == "a.jsonl"


@pytest.mark.parametrize("name", ["geo3k-3b", "geo3k-7b", "virl39k-3b"])
def test_the_papers_recipes_watch_the_whole_test_split_of_geometry3k(name):
    config = recipes.get(name)
    assert (config.data.validation or config.data.train, config.data.validation_split) == (
        "geometry3k",
        "test",
    )
    assert config.data.validation_size is None
    assert (config.eval.final_prompts, config.eval.sets) == (None, ("test",))
