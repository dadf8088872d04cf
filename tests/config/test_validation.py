"""What is refused beyond types, and the listing of all fields."""

from pathlib import Path

import pytest

from pivot import recipes
from pivot.config import Config, apply_settings, describe, validate
from pivot.config.schema import all_fields
from pivot.config.validation import ABOVE_ZERO, AT_LEAST, AT_MOST_ONE, BELOW_ONE, NOT_NEGATIVE, problems
from pivot.errors import UserError
from pivot.method import PRESETS
from pivot.recipes.reference import document

WRONG = {
    "train.lr=0": "train.lr is 0.0, but must be above 0.",
    "train.steps=0": "train.steps is 0, but must be at least 1.",
    "train.adam_beta2=1": "train.adam_beta2 is 1.0, but must be below 1.",
    "rollout.responses=1": "rollout.responses is 1, but must be at least 2",
    "rollout.top_p=1.1": "rollout.top_p is 1.1, but must be at most 1.",
    "corruption.probability=-0.1": "corruption.probability is -0.1, but must be at least 0.",
    "corruption.probability=1.1": "corruption.probability is 1.1, but must be at most 1.",
    "train.minibatch_prompts=999": "train.minibatch_prompts is 999, but must be at most train.prompts_per_step (32)",
    "corruption.kind=blue": (
        "corruption.kind is 'blue'; there are patch, grey, gaussian; yours is written package.module:name or "
        "path/to/file.py:name."
    ),
    "corruption.kind=no_such_module:f": "There is no module 'no_such_module' on Python's path for the corruption",
    "corruption.kind=math:blur": "math has no corruption 'blur'; ",
    "model.device=gpu": "model.device is 'gpu', but must be auto, cpu, cuda or cuda:N.",
    "model.attention=flash_attention_2": "model.attention=flash_attention_2 needs model.dtype=bfloat16.",
    "model.attention=flash_attention_2 train.layout=tree": "train.layout=tree needs model.attention=sdpa",
    "model.min_pixels=10 model.max_pixels=5": "model.min_pixels is 10, but must be at most model.max_pixels (5).",
    "data.tasks=angel": "data.tasks names 'angel', which is not a task; the nearest is angle.",
    "data.train=geometry3k data.tasks=angle": "data.tasks applies to data.train=tiny only",
    "reward.function=grade": "reward.functions names 'grade', which is neither accuracy nor format; write one of ",
    "reward.functions=[accuracy,format] reward.weights=[1]": "reward.weights has 1 numbers and reward.functions 2 ",
    "reward.weights=[1]": "reward.weights has 1 numbers and reward.functions 0 names; give one weight per function.",
    "reward.overlong_cache=97": "reward.overlong_cache is 97, but must be at most rollout.max_tokens (96).",
    "prompt.answer=box": "the answer form 'box' has 0 groups; expected boxed, tag, or a regular expression with one ",
    "prompt.answer=((a)": "the answer form '((a)' is not a regular expression (",
    "method=calibrl data.train=geometry3k": "Method calibrl learns from expert demonstrations; ",
    "method=off-pg-vaa buffer.store_logprobs=false": "method.anchor_use=off_policy needs the recorded ",
    "method=pgpo corruption.kind=grey": "corruption.kind has no effect with method pgpo, which hides the whole image; ",
    "method=pgpo method.corrupt_probability=0.3": "method.corrupt_probability has no effect with method pgpo, ",
    "eval.sets=": "eval.sets is empty",
    "eval.sets= eval.final_prompts=null": "eval.sets is empty",
    "eval.final_prompts=-1": "eval.final_prompts is -1, but must be at least 0.",
}


@pytest.mark.parametrize("settings", WRONG)
def test_each_mistake_is_one_sentence(settings):
    config = apply_settings(recipes.get("tiny"), settings.split())
    with pytest.raises(UserError) as caught:
        validate(config)
    assert str(caught.value).startswith(WRONG[settings])
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("method", PRESETS)
def test_every_method_is_valid_on_the_tiny_recipe(method):
    assert list(problems(apply_settings(recipes.get("tiny"), [f"method={method}"]))) == []


def test_bounds_name_fields_that_exist():
    paths = {info.path for info in all_fields(Config())}
    assert {*AT_LEAST, *ABOVE_ZERO, *AT_MOST_ONE, *BELOW_ONE, *NOT_NEGATIVE} <= paths


def test_every_field_has_a_doc_and_is_described():
    text = describe()
    for info in all_fields(Config()):
        assert info.doc.endswith((".", ")")), info.path
        if "." in info.path:
            assert f"  {info.path} = " in text


def test_the_description_shows_the_values_of_a_configuration():
    config = apply_settings(Config(), ["train.lr=0.25", "data.size=null", "eval.sets=a,b"])
    lines = describe(config).splitlines()
    assert "  train.lr = 0.25  (float)" in lines
    assert "  data.size = null  (int | null)" in lines
    assert "  eval.sets = [a, b]  (list of str)" in lines


def test_the_written_reference_is_up_to_date():
    page = Path(__file__).parents[2] / "docs" / "configuration.md"
    assert page.read_text(encoding="utf-8") == document() + "\n", (
        "run: python -m pivot.recipes.reference > docs/configuration.md"
    )
