"""`pivot train` as a person types it; whole runs are in tests/runs."""

import json

import pytest

from pivot.cli import main

SMALL = ["--steps", "1", "--quiet", "--no-report"]
for setting in ("train.prompts_per_step=4", "train.minibatch_prompts=2", "rollout.responses=4", "data.size=8",
                "rollout.max_tokens=48", "rollout.max_tries=2", "eval.every=0", "eval.final_prompts=4",
                "eval.final_samples=2"):  # fmt: skip
    SMALL += ["--set", setting]


def test_a_run_ends_with_a_table_and_can_be_shown_again(tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["train", "--recipe", "tiny", "--method", "vaa", "--out", str(out), *SMALL]) == 0
    shown = capsys.readouterr().out
    assert "tiny-test" in shown
    assert "tiny-ood" in shown
    assert str(out / "checkpoints" / "step-1" / "model") in shown
    assert json.loads((out / "config.json").read_text())["method"]["name"] == "vaa"
    before = (out / "metrics.jsonl").read_bytes()
    assert main(["train", "--recipe", "tiny", "--out", str(out), "--continue", "--no-report"]) == 0
    assert "is finished" in capsys.readouterr().out
    assert (out / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--set", "train.learning_rate=1"], "train.lr"),
        (["--set", "train.lr=fast"], "train.lr"),
        (["--method", "dapoo"], "dapo"),
        (["--recipe", "geo3k"], "nearest is geo3k"),
        (["--model", "/no/such/folder"], "the model folder /no/such/folder does not exist"),
        (["--model", "tinny"], "there is no model 'tinny'. Did you mean 'tiny'?"),
        (["--model", "nobody/nothing", "--data", "tiny"], "the hub cannot be reached"),
        (["--model", "nobody/nothing"], "needs a training set: name it with --data"),
        (["--steps", "3", "--set", "train.epochs=2"], "give only one of them"),
        (["--set", "data.holdout=1"], "data.holdout is 1.0, but must be below 1"),
        (["--set", "data.weights=1,2"], "data.weights has 2 values for 1 sets"),
        (["--data", "tiny,geometry3k", "--set", "data.weights=1,0"], "every weight must be above 0"),
        (["--data", "tiny,tiny"], "data.train names tiny twice"),
        (["--data", "tiny,geometry3k", "--set", "data.path=x"], "data.path is for one set"),
        (["--set", "data.size=0"], "data.size is 0, but must be at least 1"),
        (["--set", "data.allow_urls=maybe"], "data.allow_urls"),
        (["--set", "train.epochs=0"], "train.epochs is 0, but must be at least 1"),
        (["--data", "/no/such/file.jsonl"], "/no/such/file.jsonl"),
        (["--set", "train.minibatch_prompts=64"], "minibatch_prompts"),
        (["--resume", "/no/such/run"], "holds no run"),
        (["--resume", "/no/such/run", "--set", "train.lr=1"], "holds no run"),
        (["--reward", "nowhere:f"], "There is no module 'nowhere' on Python's path"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, capsys, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--quiet", *arguments]) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.startswith("pivot train: ")
    assert "Traceback" not in captured.err
    assert captured.err.count("\n") == 1


def test_a_folder_whose_run_got_somewhere_is_not_overwritten(tmp_path, capsys):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    assert main(["train", "--recipe", "tiny", "--out", str(tmp_path), *SMALL]) == 2
    assert "already holds a run" in capsys.readouterr().err


def test_a_start_that_failed_does_not_block_its_folder(tmp_path, capsys):
    out = ["--out", str(tmp_path / "run")]
    assert main(["train", "--recipe", "tiny", "--model", "/no/such/folder", *out, *SMALL]) == 2
    assert main(["train", "--recipe", "tiny", *out, *SMALL, "--set", "eval.final_prompts=0"]) == 0


def test_every_setting_is_explained(capsys):
    assert main(["train", "--help-config"]) == 0
    shown = capsys.readouterr().out
    for name in ("prompts_per_step", "anchor_coef", "micro_batch_tokens", "bad_rows"):
        assert name in shown


REWARDS = """
def accuracy(completions, answer):
    return [float(f"boxed{{{truth}}}" in text) for text, truth in zip(completions, answer)]


async def brevity(completions, **columns):
    return [None if i % 2 else 1 - len(text) / 400 for i, text in enumerate(completions)]
"""


def test_own_rewards_and_an_own_prompt_from_files(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rw.py").write_text(REWARDS)
    (tmp_path / "ask.jinja").write_text("{{ question }} Write \\boxed{ } at the end.")
    own = ["--reward", "rw.py:accuracy", "--reward", "./rw.py:brevity", "--set", "reward.weights=[1.0, 0.2]"]
    own += ["--set", "prompt.template=ask.jinja", "--method", "grpo", "--set", "eval.final_prompts=0"]
    small = [word for word in SMALL if word != "--quiet"]
    assert main(["train", "--recipe", "tiny", "--out", "run", *small, *own]) == 0
    shown = capsys.readouterr().out
    file = tmp_path / "rw.py"
    assert (
        f"reward: 1 x {file}:accuracy + 0.2 x {file}:brevity; correct above 0.5; no format advantage" in shown
    )
    assert "prompt: template of its own" in shown
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert row["reward/rw.accuracy"] == row["reward/accuracy"]
    assert 0 < row["reward/brevity"] < 1
    assert main(["buffer", "run"]) == 2
    assert "was trained with grpo, a method without replay: it has no experience" in capsys.readouterr().err
    words = [
        "eval",
        "--model",
        "run",
        "--benchmarks",
        "tiny-test",
        "--limit",
        "1",
        "--samples",
        "1",
        "--quiet",
    ]
    assert main(words) == 0
    assert "prompt: template of its own (its run)" in " ".join(capsys.readouterr().out.split())
    (scored,) = json.loads((tmp_path / "run/eval/scores.json").read_text())["evaluations"]
    assert main([*words, "--template", "{{ question }}", "--answer", "tag"]) == 0
    assert "prompt: template of its own, answer tag (--template and --answer)" in capsys.readouterr().out
    other = json.loads((tmp_path / "run/eval/scores.json").read_text())["evaluations"][-1]
    assert scored["settings"]["template"] != other["settings"]["template"]


@pytest.mark.parametrize(
    ("reward", "sentence"),
    [
        ("rw.py:acuracy", "rw.py has no reward function 'acuracy'; the nearest is accuracy."),
        (
            "rw:accuracy",
            "There is no module 'rw' on Python's path for the reward function rw; to use the file in this ",
        ),
        ("none.py:f", "none.py for the reward function."),
        (
            "acuracy",
            "reward.functions names 'acuracy', which is neither accuracy nor format; write one of these, ",
        ),
    ],
)
def test_a_wrong_reward_is_one_sentence(tmp_path, capsys, monkeypatch, reward, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rw.py").write_text(REWARDS)
    assert main(["train", "--recipe", "tiny", "--out", "run", *SMALL, "--reward", reward]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1
