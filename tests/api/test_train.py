"""`pivot.train`, `pivot.resume` and `pivot.Callback`: rows in memory, own rewards, callbacks, checks."""

import inspect
import json
import subprocess
import sys
from dataclasses import replace

import pytest
from PIL import Image, ImageDraw

import pivot
from pivot import recipes
from pivot.api import checked, with_settings
from pivot.errors import UserError
from pivot.runs.run import resume as resume_run

SETTINGS = {
    "train.steps": 2,
    "train.prompts_per_step": 4,
    "train.minibatch_prompts": 2,
    "rollout.responses": 4,
    "rollout.max_tokens": 32,
    "rollout.max_tries": 2,
    "data.size": 16,
    "data.validation_size": 2,
    "eval.every": 0,
    "eval.final_prompts": 0,
    "checkpoint.every": 1,
    "log.rollouts_per_step": 0,
}


def drawing(count):
    image = Image.new("RGB", (84, 84), "white")
    for place in range(count):
        ImageDraw.Draw(image).rectangle((6 + 16 * place, 20, 16 + 16 * place, 40), fill="red")
    return image


def rows():
    return [
        {"images": [drawing(n % 4 + 1)], "problem": f"How many boxes? ({n})", "answer": n % 4 + 1}
        for n in range(8)
    ]


def half_right(completions, **columns):
    return [float(number % 2) for number, _ in enumerate(completions)]


class Recorder(pivot.Callback):
    def __init__(self):
        self.events = []

    def on_step(self, step, metrics):
        self.events.append(("step", step, metrics["step"]))

    def on_eval(self, step, scores):
        self.events.append(("eval", step, scores["name"]))

    def on_checkpoint(self, step, folder):
        assert (folder / "model" / "config.json").is_file()
        self.events.append(("checkpoint", step, folder.name))

    def on_end(self, result):
        self.events.append(("end", result.steps, result.finished))


def test_rows_reward_and_callbacks_of_a_notebook(tmp_path):
    seen = Recorder()
    result = pivot.train(
        "tiny", tmp_path / "run", method="dapo", settings=SETTINGS, data=rows(), reward=half_right,
        callbacks=[seen], quiet=True,
    )  # fmt: skip
    assert (result.steps, result.finished) == (2, True)
    assert [event for event in seen.events if event[0] != "eval"] == [
        ("checkpoint", 1, "step-1"), ("step", 1, 1), ("checkpoint", 2, "step-2"), ("step", 2, 2), ("end", 2, True),
    ]  # fmt: skip
    assert [row["reward/accuracy"] for row in result.metrics] == [0.5, 0.5]
    assert (result.model / "config.json").is_file()
    config = json.loads((tmp_path / "run" / "config.json").read_bytes())
    assert config["data"]["train"] == "memory"
    assert config["reward"]["functions"] == ["memory:half_right"]
    assert config["method"]["name"] == "dapo"


def test_evaluations_reach_a_callback(tmp_path):
    seen = Recorder()
    settings = SETTINGS | {
        "train.steps": 1,
        "eval.every": 1,
        "eval.final_prompts": 2,
        "eval.final_samples": 1,
    }
    pivot.train("tiny", tmp_path, settings=settings | {"eval.sets": ["test"]}, callbacks=[seen], quiet=True)
    found = [event for event in seen.events if event[0] == "eval"]
    table = [("eval", 0, "tiny-test")] * 2, [("eval", 1, "tiny-test")] * 2
    assert found == [*table[0], ("eval", 1, "validation"), *table[1]], "shown and blank, before and after"


def test_memory_must_be_given_again_to_resume(tmp_path, repeatable, weights):
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    for out, steps in ((stopped, 1), (whole, 2)):
        pivot.train(
            "tiny",
            out,
            settings=SETTINGS | {"train.steps": steps},
            data=rows(),
            reward=half_right,
            quiet=True,
        )
    files = [stopped / name for name in ("config.json", "run.json")]
    before = [path.read_bytes() for path in files]
    with pytest.raises(UserError, match=r"rows in memory.*pivot\.resume\(RUN, data=ROWS\)"):
        pivot.resume(stopped, steps=2, reward=half_right, quiet=True)
    with pytest.raises(UserError, match="has changed since"):
        pivot.resume(stopped, steps=2, data=rows()[:-1], reward=half_right, quiet=True)
    assert [path.read_bytes() for path in files] == before, "a mistake leaves the number of steps as it was"
    with pytest.raises(UserError, match=r"the Python function half_right.*pass the function again"):
        resume_run(stopped, quiet=True)
    pivot.resume(stopped, steps=2, data=rows(), reward=half_right, quiet=True)
    assert repeatable(stopped) == repeatable(whole), "resuming equals never having stopped"
    first, second = weights(stopped), weights(whole)
    assert all((first[name] == second[name]).all() for name in first)


def test_a_callback_that_raises_ends_the_run_with_its_name(tmp_path):
    class Broken(pivot.Callback):
        def on_step(self, step, metrics):
            raise ValueError("no such key")

    with pytest.raises(UserError, match=r"the callback Broken\.on_step raised ValueError: no such key"):
        pivot.train("tiny", tmp_path, settings=SETTINGS, callbacks=[Broken()], quiet=True)
    assert json.loads((tmp_path / "run.json").read_bytes())["status"] == "failed"
    with pytest.raises(UserError, match=r"callbacks is .*, but must be a list"):
        pivot.train("tiny", tmp_path / "b", settings=SETTINGS, callbacks=Broken(), quiet=True)
    with pytest.raises(UserError, match="the class Broken, but each must be an instance"):
        pivot.train("tiny", tmp_path / "b", settings=SETTINGS, callbacks=[Broken], quiet=True)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"train.steps": -3}, "train.steps is -3, but must be at least 1"),
        ({"train.steps": "many"}, "train.steps is 'many', but must be a whole number"),
        ({"train.stepz": 3}, "no setting train.stepz; the nearest is train.steps"),
        ({"method.beta": "x"}, "method.beta is 'x', but must be a number"),
        ({"rollout": {"temperature": float("nan")}}, "rollout.temperature is nan, but must be a number"),
        ({"rollout.responses": 1}, "rollout.responses is 1, but must be at least 2"),
        (
            {"train.steps": 3, "train": {"epochs": 2}},
            "train.steps=3 and train.epochs=2 are both set; give only one",
        ),
        (["train.steps=3"], "settings is a list, but must be a dictionary such as {'train.steps': 20}"),
    ],
)
def test_settings_are_checked_as_on_the_command_line(tmp_path, settings, sentence):
    with pytest.raises(UserError) as refused:
        pivot.train("tiny", tmp_path / "run", settings=settings)
    assert sentence in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_a_configuration_made_in_python_is_checked(tmp_path):
    config = recipes.get("tiny")
    for wrong, sentence in (
        (replace(config.train, steps="ten"), "train.steps is 'ten'"),
        (replace(config.train, lr=-1.0), "train.lr is -1.0, but must be above 0"),
    ):
        with pytest.raises(UserError, match=sentence):
            pivot.train(replace(config, train=wrong), tmp_path / "run")
    assert checked(config) == config


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"data": 3}, "data is a int, but must be rows"),
        ({"data": []}, "data has no rows"),
        ({"data": [["a"]]}, "row 0 of data is a list, but must be a dictionary"),
        ({"data": {"problem": "x"}}, "data is a dict, but must be rows"),
        ({"reward": "rw:f"}, "reward is 'rw:f', but must be a function"),
        ({"engine": "verl"}, "the verl engine starts processes of its own: use `pivot train --engine verl`"),
        ({"method": "pivott"}, "no method 'pivott'; the nearest is pivot"),
    ],
)
def test_wrong_arguments_are_one_sentence(tmp_path, arguments, sentence):
    with pytest.raises(UserError) as refused:
        pivot.train("tiny", tmp_path / "run", **arguments)
    assert sentence in str(refused.value)
    with pytest.raises(UserError, match="train starts from a recipe's name"):
        pivot.train(3, tmp_path / "run")


def test_settings_may_be_dotted_or_nested():
    config = recipes.get("tiny")
    dotted = with_settings(config, {"train.steps": 5, "train.lr": 1e-3, "method.beta": 0.3})
    assert dotted == with_settings(config, {"train": {"steps": 5, "lr": 1e-3}, "method": {"beta": 0.3}})
    assert (dotted.train.steps, dotted.train.lr, dotted.method.settings()["beta"]) == (5, 1e-3, 0.3)
    by_epochs = with_settings(config, {"train.epochs": 2})
    assert by_epochs.train.epochs == with_settings(by_epochs, {"train.lr": 1e-3}).train.epochs == 2
    assert with_settings(by_epochs, {"train.steps": 7}).train.epochs is None, "steps replace earlier epochs"


def test_the_module_is_light_listed_and_documented():
    names = {"Callback", "Config", "evaluate", "recipes", "register_method", "resume", "score", "train"}
    assert names <= set(dir(pivot))
    for name in names:
        assert inspect.getdoc(getattr(pivot, name)), name
    code = "import sys, pivot; dir(pivot); print([m for m in ('torch', 'numpy', 'PIL') if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


def test_the_package_behind_evaluate_stays_importable():
    from pivot.evaluation import benchmarks
    from pivot.evaluation.runner import Evaluator

    assert callable(pivot.evaluate)
    assert benchmarks.GROUPS
    assert Evaluator.__module__ == "pivot.evaluation.runner"


def test_several_functions_of_this_process_have_weights(tmp_path, picture):
    def length(completions, **columns):
        return [len(text) / 100 for text in completions]

    rows = [{"images": [picture().open()], "problem": f"How many? {i}", "answer": "1"} for i in range(8)]
    result = pivot.train(
        "tiny",
        tmp_path,
        settings={**SETTINGS, "data.holdout": 0, "reward.weights": [2.0, 0.5]},
        data=rows,
        reward=[length, lambda completions, **columns: [1.0] * len(completions)],
        quiet=True,
    )
    row = result.metrics[-1]
    assert row["reward/mean"] == pytest.approx(2.0 * row["reward/length"] + 0.5, abs=1e-6)
