"""Configurations through mappings, files and settings."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pivot.config import Config, PromptConfig, apply_settings, from_dict, load_file, to_dict
from pivot.config.schema import all_fields
from pivot.errors import UserError
from pivot.method import PRESETS


@pytest.mark.parametrize("method", PRESETS.values(), ids=PRESETS)
def test_a_configuration_survives_json(method):
    config = replace(Config(), method=method)
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


@settings(derandomize=True, deadline=None, max_examples=50)
@given(
    lr=st.floats(1e-12, 1.0),
    size=st.none() | st.integers(1, 10**12),
    tasks=st.lists(st.text(max_size=8), max_size=4),
    blank=st.booleans(),
    train=st.text(max_size=12),
)
def test_any_values_survive_json_exactly(lr, size, tasks, blank, train):
    config = from_dict({"train": {"lr": lr}, "data": {"size": size, "tasks": tasks, "train": train}})
    config = replace(config, eval=replace(config.eval, blank=blank))
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config
    assert (config.train.lr, config.data.size, config.data.tasks) == (lr, size, tuple(tasks))


@settings(derandomize=True, deadline=None, max_examples=50)
@given(value=st.floats(1e-30, 1e30))
def test_a_number_as_text_is_the_same_number(value):
    # YAML 1.1 reads 1e-06 as text; the field's type makes it a number again.
    assert apply_settings(Config(), [f"train.lr={value!r}"]).train.lr == value


def test_settings_take_the_type_of_their_field():
    config = apply_settings(
        Config(),
        [
            "train.lr=2e-6",
            "train.steps=1e2",
            "data.size=null",
            "data.validation_size=none",
            "data.train=123",
            "data.tasks=angle, bars",
            "eval.sets=[test]",
            "eval.blank=false",
            "corruption.kind=grey",
            "corruption.raw=true",
            "reward.function=a:b=c",
        ],
    )
    assert config.train.lr == 2e-6
    assert config.train.steps == 100
    assert type(config.train.steps) is int
    assert config.data.size is None
    assert config.data.validation_size is None
    assert config.data.train == "123"
    assert config.data.tasks == ("angle", "bars")
    assert config.eval.sets == ("test",)
    assert config.eval.blank is False
    assert config.corruption.kind == "grey"
    assert config.corruption.raw is True
    assert config.reward.functions == ("a:b=c",), "under its former name"


def test_of_two_settings_for_one_field_the_last_counts():
    assert apply_settings(Config(), ["train.steps=3", "train.steps=4"]).train.steps == 4


def test_nothing_else_changes():
    before, after = Config(), apply_settings(Config(), ["train.steps=3"])
    changed = [
        a.path for a, b in zip(all_fields(before), all_fields(after), strict=True) if a.value != b.value
    ]
    assert changed == ["train.steps"]


@pytest.mark.parametrize("given", ["dapo", {"name": "dapo"}])
def test_a_method_is_named_by_text_or_by_its_name(given):
    assert from_dict({"method": given}).method == PRESETS["dapo"]


def test_a_named_method_takes_its_other_fields_on_top():
    method = from_dict({"method": {"name": "dapo", "clip_high": 0.3}}).method
    assert method == PRESETS["dapo"].with_settings(clip_high=0.3)


def test_fields_without_a_name_change_the_method_that_is_there():
    config = from_dict({"method": "vaa"})
    assert apply_settings(config, ["method.beta=0.3"]).method == PRESETS["vaa"].with_settings(beta=0.3)


@pytest.mark.parametrize(
    "settings", [["method=vaa", "method.beta=0.3"], ["method.beta=0.3", "method.name=vaa"]]
)
def test_settings_may_choose_the_preset(settings):
    assert apply_settings(Config(), settings).method == PRESETS["vaa"].with_settings(beta=0.3)


def test_a_setting_may_add_a_part():
    found = apply_settings(Config(), ["method=dapo", "method.utility=future", "method.beta=0.3"]).method
    assert found.settings() == PRESETS["vaa"].with_settings(beta=0.3).settings()
    assert (
        from_dict(
            json.loads(json.dumps({"method": to_dict(replace(Config(), method=found))["method"]}))
        ).method
        == found
    )


def test_old_run_folders_store_settings_of_parts_that_are_off():
    stored = {
        "name": "dapo",
        "summary": "as stored",
        **PRESETS["dapo"].settings(),
        "beta": 0.5,
        "anchor_coef": 0.1,
    }
    assert from_dict({"method": stored}).method == replace(PRESETS["dapo"], summary="as stored")


def test_a_method_made_in_python_comes_back_from_a_complete_mapping():
    config = replace(Config(), method=replace(PRESETS["pivot"].with_settings(beta=0.7), name="mine"))
    assert from_dict(to_dict(config)) == config


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("train.learning_rate=1", "There is no setting train.learning_rate; the nearest is train.lr."),
        ("train.qqq=1", "There is no setting train.qqq; there are train.steps, "),
        ("train.lrr=1", "There is no setting train.lrr; the nearest is train.lr."),
        ("train.max_tokens=1", "There is no setting train.max_tokens; the nearest is rollout.max_tokens."),
        ("max_tokens=1", "There is no setting max_tokens; the nearest is rollout.max_tokens."),
        ("trian.lr=1", "There is no setting trian; the nearest is train."),
        ("train.lr=fast", "train.lr is 'fast', but must be a number."),
        ("train.lr=nan", "train.lr is 'nan', but must be a number."),
        ("train.lr=[", "train.lr is '[', but must be a number."),
        ("train.steps=1.5", "train.steps is 1.5, but must be a whole number."),
        ("data.size=many", "data.size is 'many', but must be a whole number or null."),
        ("eval.blank=7", "eval.blank is 7, but must be true or false."),
        ("method=dappo", "There is no method 'dappo'; the nearest is dapo."),
        ("method.clip_low=2", "method.clip_low must lie in [0, 1], got 2.0."),
        ("method.clip_lo=0.1", "There is no setting method.clip_lo; the nearest is method.clip_low."),
        ("method.bta=0.1", "There is no setting method.bta; the nearest is method.beta."),
        ("method.beta=strong", "method.beta is 'strong', but must be a number."),
        ("method.utility=all", "method.utility is 'all', but must be one of none, local, future."),
        (
            "method.off_policy_shaping=0.2",
            "Method pivot has no setting method.off_policy_shaping, which belongs to a part that it lacks; "
            "the nearest it has is method.anchor_use.",
        ),
        (
            "method=no.such.package:mine",
            "There is no module 'no' on Python's path for the method no.such.package; install it or set PYTHONPATH.",
        ),
        (
            "method=pivot.method:visual_support",
            "pivot.method:visual_support is of type function, but a method must be a",
        ),
        ("method=pivot.method:mine", "pivot.method has no method 'mine'; "),
        ("train=3", "train is a section, not a field: set one of its fields, train.FIELD=3."),
        ("train.lr.x=3", "train.lr is a number and has no fields, so train.lr.x cannot be set."),
        ("train.lr", "--set takes section.field=value, for example train.lr=2e-6, not 'train.lr'."),
    ],
)
def test_a_wrong_setting_is_refused_in_one_sentence(setting, sentence):
    with pytest.raises(UserError) as caught:
        apply_settings(Config(), [setting])
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("mapping", "sentence"),
    [
        ({"train": {"lrr": 1}}, "There is no setting train.lrr; the nearest is train.lr."),
        ({"train": 3}, "train is 3, but it is a section; give train.FIELD = value."),
        ({"train": {"steps": True}}, "train.steps is True, but must be a whole number."),
        ({"model": {"path": 3}}, "model.path is 3, but must be text."),
        ({"eval": {"sets": "test"}}, "eval.sets is 'test', but must be a list, each item text."),
        ({"eval": {"sets": ["test", 3]}}, "eval.sets[1] is 3, but must be text."),
        ({"method": 3}, "method is 3, but must be a method's name or a mapping of its fields."),
        ({"method": {"name": "mine"}}, "There is no method 'mine'; "),
    ],
)
def test_a_wrong_mapping_is_refused_in_one_sentence(mapping, sentence):
    with pytest.raises(UserError) as caught:
        from_dict(mapping)
    assert str(caught.value).startswith(sentence)


FILES = {
    "run.yaml": "train:\n  lr: 2e-6\nmethod: dapo\neval: {sets: [test]}\n",
    "run.toml": 'method = "dapo"\n[train]\nlr = 2e-6\n[eval]\nsets = ["test"]\n',
    "run.json": '{"train": {"lr": 2e-6}, "method": "dapo", "eval": {"sets": ["test"]}}',
}


@pytest.mark.parametrize("name", FILES)
def test_all_file_formats_say_the_same(name, tmp_path):
    (tmp_path / name).write_text(FILES[name])
    config = from_dict(load_file(tmp_path / name))
    assert config.train.lr == 2e-6
    assert config.method == PRESETS["dapo"]
    assert config.eval.sets == ("test",)


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("run.yaml", "train: [", "is not valid YAML"),
        ("run.toml", "train", "is not valid TOML"),
        ("run.json", "{", "is not valid JSON"),
        ("run.json", b"\xff", "is not valid JSON"),
        ("run.yaml", "- 1", "must hold sections with fields, not list."),
        ("run.ini", "", "must end in .yaml, .yml, .toml or .json."),
        ("run.yaml", None, "cannot be read: No such file or directory."),
    ],
)
def test_a_broken_file_is_refused_in_one_sentence(name, content, part, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as caught:
        load_file(tmp_path / name)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_file_sets_nothing(tmp_path):
    (tmp_path / "run.yaml").write_text("# nothing yet\n")
    assert load_file(tmp_path / "run.yaml") == {}


def test_a_configuration_of_an_older_run_has_one_reward_function_and_the_papers_prompt():
    old = to_dict(Config())
    del old["prompt"]
    old["reward"] = {"function": "m:f", "grader": "mathruler", "workers": 1, "timeout": 60.0}
    read = from_dict(old)
    assert read.reward.functions == ("m:f",)
    assert read.reward.grader == "mathruler"
    assert read.prompt == PromptConfig()
    assert from_dict({"reward": {"function": None}}).reward.functions == ()


def test_a_template_is_stored_as_text_and_a_reward_file_with_its_whole_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ask.jinja").write_text("{{ question }} Please.")
    settings = [
        "prompt.template=ask.jinja",
        "reward.functions=[./rw.py:f, accuracy, m:g]",
        "reward.weights=1, 0.5, 0",
    ]
    config = apply_settings(Config(), settings)
    assert config.prompt.template == "{{ question }} Please."
    assert config.reward.functions == (f"{tmp_path}/rw.py:f", "accuracy", "m:g")
    assert config.reward.weights == (1.0, 0.5, 0.0)
    (tmp_path / "ask.jinja").unlink()
    assert from_dict(to_dict(config)) == config, "the file is not needed again"
