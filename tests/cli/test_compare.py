import json

from pivot.cli import main


def make_run(folder, method, accuracy):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"method": {"name": method}, "train": {"seed": 0}}))
    (folder / "metrics.jsonl").write_text(
        json.dumps({"step": 1, "eval/accuracy": accuracy, "time/step": 2.0}) + "\n"
    )
    return str(folder)


def test_compare_writes_page_tables_and_figures_where_asked(tmp_path, capsys):
    runs = [make_run(tmp_path / "a", "dapo", 0.4), make_run(tmp_path / "b", "pivot", 0.5)]
    assert main(["compare", *runs, "--out", str(tmp_path / "out"), "--baseline", "pivot"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "out" / "comparison.html")
    assert (
        tmp_path / "out" / "tables" / "main.csv"
    ).read_text() == "Method,validation,Seeds\ndapo,40.0,1\npivot,50.0,1\n"
    assert "Δ relative to pivot" in (tmp_path / "out" / "tables" / "overhead.md").read_text()
    assert (tmp_path / "out" / "figures" / "compared-validation-accuracy.pdf").is_file()


def test_an_unknown_baseline_exits_with_2(tmp_path, capsys):
    run = make_run(tmp_path / "a", "dapo", 0.4)
    assert main(["compare", run, "--out", str(tmp_path / "out"), "--baseline", "vppo"]) == 2
    assert "--baseline vppo is not among the runs" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
