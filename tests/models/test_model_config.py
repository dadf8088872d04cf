"""Configurations with sizes that no model has, and chat templates that do not work: one sentence each, in time."""

import json
import shutil
import time

import pytest

from pivot.doctor import find_architecture
from pivot.errors import UserError
from pivot.models import chat_template
from pivot.models.loading import load_policy, load_tokenizer_only, resolve_model
from pivot.models.model_config import read_config


@pytest.fixture
def model(tmp_path):
    """The tiny model's files; `change` edits its config.json, `template` its chat template."""
    folder = shutil.copytree(resolve_model("tiny"), tmp_path / "model")

    class Files:
        path = folder

        def change(self, section, **values):
            file = folder / "config.json"
            config = json.loads(file.read_text())
            (config[section] if section else config).update(values)
            file.write_text(json.dumps(config))

        def template(self, text):
            (folder / "chat_template.jinja").write_text(text)

    return Files()


@pytest.mark.parametrize(
    ("section", "values", "words"),
    [
        ("text_config", {"hidden_size": 10**9}, "sets text_config.hidden_size to 1000000000, expected"),
        ("text_config", {"num_hidden_layers": 10**6}, r"num_hidden_layers to 1000000, .* from 0 to 1,000"),
        ("text_config", {"hidden_size": -5}, "sets text_config.hidden_size to -5"),
        ("text_config", {"vocab_size": "many"}, "sets text_config.vocab_size to 'many'"),
        ("text_config", {"num_attention_heads": 0}, "describes no model"),
        ("vision_config", {"depth": 10**400}, r"vision_config.depth to 1000.*\(401 characters\)"),
        ("vision_config", {"patch_size": 1.5}, "sets vision_config.patch_size to 1.5"),
        ("", {"text_config": []}, "describes no model"),
        ("", {"image_token_id": 10**6}, "sets image_token_id to 1000000, expected one of its"),
        ("", {"model_type": None}, "None models are not supported"),
        ("", {"model_type": "no such"}, "no such models are not supported"),
    ],
)
def test_absurd_sizes_are_one_sentence_wherever_a_model_is_read(model, section, values, words):
    model.change(section, **values)
    for read in (load_policy, load_tokenizer_only, find_architecture, read_config):
        with pytest.raises(UserError, match=words):
            read(str(model.path))


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("config.json", "[]", r"config.json is damaged \(it holds no JSON object"),
        ("tokenizer.json", "[]", "tokenizer.json is damaged"),
        ("tokenizer_config.json", "5", "tokenizer_config.json is damaged"),
        ("preprocessor_config.json", "", "preprocessor_config.json is damaged .it is empty"),
        ("generation_config.json", "NaN", "generation_config.json is damaged"),
        ("generation_config.json", '{"eos_token_id": "x"}', "eos_token_id to 'x', expected token numbers"),
        ("preprocessor_config.json", '{"patch_size": 0}', "patch_size to 0, expected at least 1"),
    ],
)
def test_files_of_a_model_that_hold_something_else_are_named(model, file, text, words):
    (model.path / file).write_text(text)
    with pytest.raises(UserError, match=words):
        load_policy(str(model.path))


def test_values_that_only_building_the_model_finds_are_one_sentence(model):
    model.change("text_config", vocab_size=0)
    model.change("", image_token_id=0)
    with pytest.raises(UserError, match="image_token_id to 0, expected one of its 0 tokens"):
        load_policy(str(model.path))
    model.change("text_config", vocab_size=1)
    with pytest.raises(UserError, match="cannot load the model"):
        load_policy(str(model.path))


def test_a_model_larger_than_the_machine_is_refused_before_it_is_built(model):
    """Each size is plausible, their product is not; the estimate of `pivot doctor` still works on it."""
    model.change("text_config", hidden_size=2**20, intermediate_size=2**20)
    with pytest.raises(UserError, match=r"at least 16,493.3 billion parameters, which do not fit into"):
        load_policy(str(model.path))
    assert find_architecture(str(model.path)).parameters > 16e12


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('no system role') }}", "it raises TemplateError: no system role"),
        ("{% if %}", "it raises TemplateSyntaxError"),
        ("{{ 'a' * 10**12 }}", "it raises MemoryError"),
        ("{{ messages | length }}", "it does not print the user's text"),
        (
            "{% for i in range(99999) %}{{ messages[1].content }}{% endfor %}",
            "characters around a short text",
        ),
    ],
)
def test_a_chat_template_that_does_not_work_is_named(model, template, words):
    model.template(template)
    with pytest.raises(UserError, match=f"the model's chat template cannot be used: .*{words}"):
        load_tokenizer_only(model.path)


@pytest.mark.parametrize(
    "template",
    ["{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "{{ x ** y }}"],
)
def test_a_chat_template_that_does_not_end_is_given_up(model, monkeypatch, template):
    """Also where one operation of the interpreter does not end."""
    monkeypatch.setattr(chat_template, "SECONDS", 0.5)
    model.template("{% set x = 3 %}{% set y = messages | length * 10**9 %}" + template)
    begin = time.monotonic()
    with pytest.raises(UserError, match=r"the model's chat template does not end within 0.5 s"):
        load_tokenizer_only(model.path)
    assert time.monotonic() - begin < 60, "half a second, and a margin for a busy machine"


def test_a_model_without_a_chat_template(model):
    (model.path / "chat_template.jinja").unlink()
    with pytest.raises(UserError, match="the model has no chat template"):
        load_tokenizer_only(model.path)


def test_a_template_that_takes_text_only_in_parts_works(model):
    """The first way of writing the messages raises, the second one works."""
    model.template("{% for m in messages %}<{{ m.role }}>{{ m.content[0].text }}{% endfor %}<answer>")
    before, after = load_tokenizer_only(model.path).family.frame(False)
    assert before.startswith("<system>")
    assert before.endswith("<user>")
    assert after == "<answer>"
