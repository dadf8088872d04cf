"""docs/extending.md: its files, in a folder outside the package, and its commands, run there."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from transformers import (
    AutoTokenizer,
    CLIPImageProcessorPil,
    GenerationConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

from pivot import tiny
from pivot.plugins import find_object

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))
ROWS = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)[0]
COMMANDS = re.findall(r"^\$ (pivot .*)$", PAGE, re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """What a reader of the page has after copying its files."""
    folder = tmp_path_factory.mktemp("mine")
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "stripes.jsonl").write_text(ROWS, encoding="utf-8")
    for row in map(json.loads, ROWS.splitlines()):
        image = Image.new("RGB", (84, 84), "white")
        for stripe in range(int(row["truth"])):
            image.paste("black", (8 + 14 * stripe, 8, 14 + 14 * stripe, 76))
        image.save(folder / row["pic"])
    write_llava(folder / "llava-folder")
    return folder


def write_llava(folder: Path) -> None:
    """LLaVA-1.5 with two small layers, random weights and the tiny model's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(tiny.checkpoint_path("easy"))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    token = tokenizer.get_vocab().__getitem__
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlavaConfig(
        text_config={
            "model_type": "llama",
            "vocab_size": len(tokenizer),
            "max_position_embeddings": 1024,
            **sizes,
        },
        vision_config={"model_type": "clip_vision_model", "image_size": 56, "patch_size": 14, **sizes},
        image_token_index=token("<image>"),
    )
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(config)
    model.generation_config = GenerationConfig(
        eos_token_id=token("<|im_end|>"), pad_token_id=token("<|endoftext|>")
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    CLIPImageProcessorPil(size={"shortest_edge": 56}, crop_size=56).save_pretrained(folder)


@pytest.fixture
def run(folder: Path, server):
    """Runs a command of the page in that folder, in a process of its own."""

    def run(command: str) -> None:
        ended = server.run(*command.split()[1:], folder=str(folder))
        assert ended.code == 0, ended.said

    return run


def rows(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_the_page_has_an_example_of_everything_that_can_live_outside():
    things = ("method", "corruption", "reward", "benchmark", "family", "tracker", "engine")
    assert set(FILES) == {f"my_{thing}.py" for thing in things}
    assert len(COMMANDS) == 6


def test_its_commands_train_and_evaluate(folder: Path, run):
    train, evaluate = COMMANDS[:2]
    run(train)
    config = json.loads((folder / "runs/careful/config.json").read_text())
    assert config["method"]["source"] == f"{folder}/my_method.py:careful"
    assert config["corruption"]["kind"] == f"{folder}/my_corruption.py:top"
    found = rows(folder / "runs/careful")
    assert [row["step"] for row in found] == [1, 2]
    assert all(row["reward/accuracy"] < 1 for row in found), "the length of a response costs some reward"
    run(evaluate)
    (entry,) = json.loads((folder / "runs/careful/eval/scores.json").read_text())["evaluations"]
    assert (entry["name"], entry["prompts"], entry["samples"]) == ("stripes", 4, 2)


def test_a_model_family_trains_and_is_evaluated_with_its_plugin_and_without(folder: Path, run):
    train, evaluate = COMMANDS[2:4]
    run(train)
    assert rows(folder / "runs/llava")[0]["step"] == 1
    run(evaluate)
    (entry,) = json.loads((folder / "runs/llava/eval/scores.json").read_text())["evaluations"]
    assert (entry["name"], entry["prompts"]) == ("tiny-test", 2)
    # Without the plugin the model is of no known family and still runs, through the generic one.
    run(evaluate.replace("--plugin my_family.py ", ""))


def test_an_engine_and_a_tracker_train_and_resume(folder: Path, run, repeatable):
    train, resume = COMMANDS[4:]
    out = folder / "runs/averaged"
    run(train)
    assert json.loads((out / "run.json").read_text())["engine"] == "averaged"
    before, average = repeatable(out), out / "checkpoints/step-2/average.safetensors"
    weights = average.read_bytes()
    shutil.rmtree(out / "checkpoints/step-2")
    status = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps(status | {"status": "stopped"}))
    run(resume)
    assert repeatable(out) == before
    assert average.read_bytes() == weights
    with sqlite3.connect(folder / "runs/metrics.sqlite") as database:
        query = (
            "select step, value from metrics where run = 'averaged' and name = 'eval/accuracy' order by step"
        )
        assert database.execute(query).fetchall() == [(row["step"], row["eval/accuracy"]) for row in before]


def test_the_engine_evaluates_the_average_and_trains_the_weights(folder: Path, small_config, policy):
    engine = find_object(f"{folder}/my_engine.py:AveragedEngine", "engine", type)(
        small_config("dapo"), policy
    )
    name, weight = next(iter(engine.weights()))
    engine.average[name].zero_()
    kept, seen = weight.detach().clone(), []
    sampler = engine.evaluation_sampler()
    sampler.sampler = SimpleNamespace(sample=lambda *_: iter([seen.append(bool((weight == 0).all()))]))
    list(sampler.sample([], None))
    assert seen == [True]
    assert bool((weight == kept).all())
    assert bool((engine.average[name] == 0).all())


@pytest.mark.parametrize("name", FILES)
def test_the_lines_it_states_are_those_of_the_file(name):
    written = f"```python\n# {name}"
    stated = int(re.findall(r"(\d+) lines:", PAGE[: PAGE.index(written)])[-1])
    assert stated == len([line for line in FILES[name].splitlines() if line.strip()])
