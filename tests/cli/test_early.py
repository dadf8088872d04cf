"""A mistyped name, option or path is reported before torch is imported."""

import json
import subprocess
import sys
from argparse import ArgumentParser

import pytest

from pivot.cli import train
from pivot.errors import UserError

MISTAKES = [
    ("train --recipe tinny", "There is no recipe 'tinny'; the nearest is tiny."),
    ("train --recpe tiny", "unrecognized arguments: --recpe tiny"),
    ("train --set train.lrr=3", "There is no setting train.lrr; the nearest is train.lr."),
    ("train --set method.betta=3", "There is no setting method.betta; the nearest is method.beta."),
    (
        "train --set train.lr",
        "--set takes section.field=value, for example train.lr=2e-6, not 'train.lr'.",
    ),
    ("train --config settings.yaml", "There is no setting trian; the nearest is train."),
    ("train --method dappo", "There is no method 'dappo'; the nearest is dapo."),
    ("train --method no.py:mine", "no.py for the method."),
    ("train --model tinny", "there is no model 'tinny'. Did you mean 'tiny'?"),
    ("train --model ./no", "the model folder ./no does not exist"),
    ("train --data tiny,no.jsonl", "no.jsonl does not exist: give a parquet"),
    ("train --set data.path=no.csv --data custom", "no.csv does not exist: give a parquet"),
    ("train --reward no.py:f", "no.py for the reward function."),
    ("train --plugin no.py", "no.py for the plugin."),
    ("train --resume runs/none", "runs/none holds no run: there is no config.json in it."),
    ("eval --model ./no --benchmarks tiny-test", "the model folder ./no does not exist"),
    ("eval --model tiny --benchmarks no.parquet", "no.parquet does not exist"),
    ("eval --model tiny --data tiny --set data.pth=x", "There is no setting data.pth"),
    ("eval --model tiny --data tiny --temprature 1", "unrecognized arguments: --temprature 1"),
    ("attention --model tiny --data no.jsonl", "no.jsonl does not exist"),
    ("data no.jsonl", "no.jsonl does not exist"),
    ("doctor --recipe geo3k", "There is no recipe 'geo3k'; the nearest is geo3k-"),
    ("sweep no.yaml", "The config file no.yaml cannot be read: No such file or directory."),
    ("buffer runs/none", "there is no folder runs/none"),
]
CODE = """
import json, os, sys
from pivot.cli import main
for number, words in enumerate(json.load(sys.stdin)):
    child = os.fork()
    if child == 0:
        os.dup2(os.open(f"{number}.said", os.O_WRONLY | os.O_CREAT), 2)
        try:
            code = main(words.split())
        except SystemExit as ended:
            code = ended.code
        heavy = {"torch", "transformers", "matplotlib"} & set(sys.modules)
        if heavy:
            print(heavy, file=sys.stderr)
        sys.stderr.flush()
        os._exit(99 if heavy else code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Runs every command in a process of its own, with nothing imported but what all commands need."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Command -> its exit code and what it says."""
    folder = tmp_path_factory.mktemp("early")
    (folder / "settings.yaml").write_text("trian: {lr: 1.0e-6}\n")
    commands = [words for words, _ in MISTAKES]
    done = subprocess.run(
        [sys.executable, "-c", CODE], input=json.dumps(commands), cwd=folder, capture_output=True, text=True,
        timeout=300, check=True,
    )  # fmt: skip
    said = [(folder / f"{number}.said").read_text() for number in range(len(commands))]
    return dict(zip(commands, zip(map(int, done.stdout.split()), said, strict=True), strict=True))


@pytest.mark.parametrize(("words", "said"), MISTAKES)
def test_a_mistake_is_answered_without_torch(words, said, answers):
    code, answer = answers[words]
    assert code == 2, answer
    assert said in answer
    assert "Traceback" not in answer


@pytest.mark.parametrize(
    "words",
    [
        "--plugin plugin.py --method mine --set method.warmth=1",
        "--method plugin.py:mine --set method.warmth=1",
        "--config settings.yaml --method mine --set method.warmth=1",
        "--method package.module:mine --set method.warmth=1",
    ],
)
def test_what_only_an_import_can_know_is_left_to_it(words, tmp_path, monkeypatch):
    """A plugin may register the method, and a method from outside has settings of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plugin.py").write_text("")
    (tmp_path / "settings.yaml").write_text("plugins: [plugin.py]\n")
    parser = ArgumentParser()
    train.add_arguments(parser)
    train.check(parser.parse_args(words.split()))
    with pytest.raises(UserError, match=r"There is no setting trian; the nearest is train\."):
        train.check(parser.parse_args([*words.split(), "--set", "trian.lr=1"]))
