"""`pivot push`: what it would upload, and one sentence without a network. The upload itself is not run here."""

import json

import pytest

from pivot.cli import main
from pivot.cli.push import to_upload
from pivot.runs.run import train


@pytest.fixture(scope="module")
def trained(tmp_path_factory, small_config):
    out = tmp_path_factory.mktemp("push") / "run"
    train(
        small_config("pivot", "train.steps=2", "checkpoint.every=1", "log.rollouts_per_step=1"),
        out,
        quiet=True,
    )
    return out


def names(text):
    return [
        line.split()[1] for line in text.splitlines() if " bytes in " not in line and "dry run" not in line
    ]


def test_a_dry_run_lists_the_model_its_processor_and_its_card(trained, capsys):
    assert main(["push", str(trained), "--to", "me/tiny-pivot", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert {"README.md", "config.json", "model.safetensors", "preprocessor_config.json", "tokenizer.json",
            "tokenizer_config.json", "chat_template.jinja"} <= set(names(text))  # fmt: skip
    assert not any("rollouts" in name or name.startswith("run/") for name in names(text))
    assert "for me/tiny-pivot (private if it is new)" in text
    assert "nothing was uploaded" in text


def test_files_of_the_run_only_if_asked(trained, capsys):
    given = ["--to", "me/x", "--dry-run", "--add", "metrics.jsonl", "--public", "--step", "1"]
    assert main(["push", str(trained), *given]) == 0
    text = capsys.readouterr().out
    assert "run/metrics.jsonl" in names(text)
    assert "(public if it is new)" in text
    card = to_upload(trained, 1, [])["README.md"]
    assert isinstance(card, bytes), "made for this checkpoint, and not written into it"
    assert b"1 of 2 steps" in card
    assert not (trained / "checkpoints" / "step-1" / "model" / "README.md").exists()


def test_without_a_network_it_is_one_sentence(trained, capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_none")
    assert main(["push", str(trained), "--to", "me/x"]) == 2
    error = capsys.readouterr().err
    assert "the hub cannot be reached from here" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--to", "nowhere"], "--to is 'nowhere', but must be USER/NAME"),
        (["--to", "a/b/c"], "--to is 'a/b/c', but must be USER/NAME"),
        (["--to", "me/x", "--step", "7"], "has no checkpoint of step 7; it has 1, 2"),
        (["--to", "me/x", "--add", "report.html"], "has no report.html"),
    ],
)
def test_mistakes(trained, capsys, options, sentence):
    assert main(["push", str(trained), *options, "--dry-run"]) == 2
    assert sentence in capsys.readouterr().err


def test_a_folder_without_a_run(tmp_path, capsys):
    assert main(["push", str(tmp_path), "--to", "me/x", "--dry-run"]) == 2
    assert "holds no run" in capsys.readouterr().err
    (tmp_path / "config.json").write_text(json.dumps({}))
    assert main(["push", str(tmp_path), "--to", "me/x", "--dry-run"]) == 2
    assert "has no checkpoint yet" in capsys.readouterr().err
