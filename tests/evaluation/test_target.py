"""Which image limits, grader, response limit and dtype each of several models is evaluated with."""

import json
import shutil
from dataclasses import replace

import pytest

from pivot import recipes, tiny
from pivot.config import apply_settings, to_dict
from pivot.errors import UserError
from pivot.evaluation.target import GivenOptions, choose_conditions, find_target
from pivot.models.loading import file_limits

PAPER = (200704, 1003520)
TINY = (3136, 12544)
QWEN = (3136, 12845056)


def model(folder, limits=None):
    """A model's folder; `limits` as a stock model's files spell them."""
    shutil.copytree(tiny.checkpoint_path("easy"), folder)
    if limits is not None:
        path = folder / "preprocessor_config.json"
        known = json.loads(path.read_text())
        del known["size"]
        path.write_text(json.dumps(known | {"min_pixels": limits[0], "max_pixels": limits[1]}))
    return find_target(str(folder))


@pytest.fixture
def base(tmp_path):
    """A model that is made for large images, as Qwen's files say it."""
    return model(tmp_path / "qwen", QWEN)


@pytest.fixture
def new_run(tmp_path, save_tiny):
    """Makes a run of the tiny recipe with some settings."""

    def make(name, *settings):
        save_tiny(tmp_path / name, 2)
        config = apply_settings(recipes.get("tiny"), settings)
        (tmp_path / name / "config.json").write_text(json.dumps(to_dict(config)))
        return find_target(str(tmp_path / name))

    return make


def chosen(targets, **asked):
    return choose_conditions(targets, GivenOptions(**asked))


def test_the_files_limits_in_both_spellings(base):
    assert file_limits(base.folder) == QWEN
    assert file_limits(tiny.checkpoint_path("easy")) == TINY


def test_a_model_alone_has_the_papers_limits_unless_it_is_made_for_small_images(base):
    real, small = chosen([base, find_target("tiny")])
    assert real.limits.value == PAPER
    assert real.limits.source == "default, recipe geo3k-3b"
    assert (small.limits.value, small.limits.source) == (TINY, "the model's files")
    for found in (real, small):
        assert (found.grader.value, found.max_tokens.value) == ("pivot", 2048)
        assert (found.dtype.value, found.dtype.source) == ("float32", "the model's files")


def test_a_run_has_its_own_and_a_model_beside_it_the_same(base, new_run):
    settings = (
        "model.min_pixels=784",
        "model.max_pixels=3136",
        "reward.grader=mathruler",
        "model.dtype=bfloat16",
    )
    run = new_run("x", *settings)
    for found, source in zip(chosen([base, run]), (f"as {run.name}", "its run"), strict=True):
        values = (found.limits, found.grader, found.max_tokens, found.dtype)
        assert [choice.value for choice in values] == [(784, 3136), "mathruler", 96, "bfloat16"]
        assert {choice.source for choice in values} == {source}


def test_a_run_without_limits_has_those_of_its_files(base, new_run):
    found, run = chosen([base, new_run("x")])
    assert found.limits.value == run.limits.value == TINY
    assert run.limits.source == "its run: the model's files"


def test_where_runs_disagree_the_default_holds_for_that_alone(base, new_run):
    runs = [
        new_run("x", "model.min_pixels=784", "model.max_pixels=3136", "rollout.max_tokens=50"),
        new_run("y", "model.min_pixels=784", "model.max_pixels=6272", "rollout.max_tokens=50"),
    ]
    found, *theirs = chosen([base, *runs])
    assert (found.limits.value, found.limits.source) == (PAPER, "default, recipe geo3k-3b")
    assert (found.max_tokens.value, found.max_tokens.source) == (50, "as the other runs")
    assert [run.limits.value for run in theirs] == [(784, 3136), (784, 6272)]


def test_a_recipe_is_for_models_that_no_run_made(base, new_run):
    run = new_run("x", "model.min_pixels=784", "model.max_pixels=3136")
    found, own = chosen([base, run], recipe="geo3k-7b")
    assert (found.limits.value, found.limits.source) == (PAPER, "recipe geo3k-7b")
    assert (found.max_tokens.value, found.dtype.value) == (2048, "bfloat16")
    assert own.limits.value == (784, 3136)
    (tiny_like,) = chosen([base], recipe="tiny")
    assert (tiny_like.limits.value, tiny_like.max_tokens.value) == (QWEN, 96)
    with pytest.raises(UserError, match="every model here comes from a run"):
        chosen([run], recipe="geo3k-3b")
    with pytest.raises(UserError, match="no recipe 'geo3k'"):
        chosen([base], recipe="geo3k")


def test_options_override_everything(base, new_run):
    run = new_run("x", "model.min_pixels=784", "model.max_pixels=3136")
    asked = GivenOptions(None, 1568, 4704, "mathruler", 7, "bfloat16")
    for found in choose_conditions([base, run], asked):
        values = (found.limits, found.grader, found.max_tokens, found.dtype)
        assert [choice.value for choice in values] == [(1568, 4704), "mathruler", 7, "bfloat16"]
        assert found.limits.source == "--min-pixels and --max-pixels"
        assert found.max_tokens.source == "--max-tokens"
    (one_side,) = choose_conditions([run], replace(asked, min_pixels=None))
    assert (one_side.limits.value, one_side.limits.source) == ((784, 4704), "--max-pixels, else its run")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"min_pixels": 0}, r"^--min-pixels is 0; it must be at least 1\.$"),
        ({"min_pixels": 20000}, r"at least 20000 and at most 12544 pixels \(--min-pixels, else the model's files\)"),
        ({"min_pixels": 20, "max_pixels": 10}, r"at least 20 and at most 10 pixels"),
    ],
)  # fmt: skip
def test_limits_that_cannot_be_are_one_sentence(asked, said):
    with pytest.raises(UserError, match=said) as caught:
        chosen([find_target("tiny")], **asked)
    assert "\n" not in str(caught.value)


def test_the_description_names_every_value_and_source(base):
    (found,) = chosen([base], grader="mathruler")
    assert found.describe() == (
        "images of 200704 to 1003520 pixels (default, recipe geo3k-3b); grader mathruler (--grader); "
        "at most 2048 tokens (default, recipe geo3k-3b); float32 (the model's files)"
    )
    assert "grader" not in found.describe(graded=False)


def test_a_folder_that_does_not_say_how_it_resizes_is_one_sentence(base):
    (base.folder / "preprocessor_config.json").unlink()
    with pytest.raises(UserError, match=r"needs a preprocessor_config\.json") as caught:
        chosen([base])
    assert "\n" not in str(caught.value)
