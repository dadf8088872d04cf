import json

import pytest

from pivot.cli import main


def make_run(folder):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"method": {"name": "dapo"}, "train": {"steps": 2}}))
    (folder / "metrics.jsonl").write_text(
        '{"step": 1, "reward/accuracy": 0.25}\n{"step": 2, "reward/accuracy": 0.5}\n'
    )
    return folder


def test_report_writes_a_page_and_figures_and_prints_its_path(tmp_path, capsys):
    folder = make_run(tmp_path / "run")
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    assert "50.0<small>%</small>" in (folder / "report.html").read_text()
    assert sorted(p.name for p in (folder / "figures").iterdir()) == [
        "training-accuracy.pdf",
        "training-accuracy.svg",
    ]


def test_without_figures_there_is_the_page_alone(tmp_path):
    folder = make_run(tmp_path / "run")
    assert main(["report", str(folder), "--no-figures"]) == 0
    assert not (folder / "figures").exists()


@pytest.mark.parametrize("command", ["report", "compare"])
def test_a_folder_that_is_no_run_is_one_sentence_and_exit_code_2(tmp_path, capsys, command):
    assert main([command, str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"pivot {command}: {tmp_path} is not a run's folder: it has none of config.json")
    assert said.count("\n") == 1
