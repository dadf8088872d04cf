"""`pivot eval` from the command line, with the real tiny model and real rows."""

import csv
import json
import shutil

import pytest

from pivot import recipes, tiny
from pivot.cli import main
from pivot.config import apply_settings, to_dict
from pivot.report.evaluations import evaluation_table
from pivot.report.run import read_run


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def evaluations(folder):
    return json.loads((folder / "scores.json").read_text())["evaluations"]


def run_eval(*options):
    return main(["eval", "--quiet", "--max-tokens", "48", *map(str, options)])


def test_tiny_with_a_blank_control(elsewhere, capsys):
    assert (
        run_eval(
            "--model", "tiny", "--benchmarks", "tiny-test,tiny-ood", "--limit", 4, "--samples", 2, "--blank"
        )
        == 0
    )
    found = evaluations(elsewhere / "eval" / "tiny")
    assert [(e["name"], e["blank"]) for e in found] == [
        ("tiny-test", False), ("tiny-test", True), ("tiny-ood", False), ("tiny-ood", True),
    ]  # fmt: skip
    for entry in found:
        assert entry["samples"] == 2
        assert entry["prompts"] == 4
        assert 0 <= entry["interval"][0] <= entry["accuracy"] <= entry["interval"][1] <= 1
        assert entry["pass_at_k"]["1"] == pytest.approx(entry["accuracy"])
        rows = [
            json.loads(line)
            for line in (elsewhere / "eval" / "tiny" / entry["file"]).read_text().splitlines()[1:]
        ]
        assert len(rows) == 8
        assert sum(row["correct"] for row in rows) / 8 == entry["accuracy"]
    texts = [(elsewhere / "eval" / "tiny" / e["file"]).read_text() for e in found[:2]]
    assert texts[0] != texts[1], "blank images change what is said"
    shown = capsys.readouterr().out
    assert "accuracy@2" in shown
    assert "tiny-ood" in shown


def test_real_geometry3k_rows(elsewhere, shared_data):
    file = shared_data / "geometry3k" / "test.parquet"
    options = [
        "--path",
        f"geometry3k={file}",
        "--limit",
        2,
        "--samples",
        2,
        "--max-tokens",
        16,
        "--out",
        "here",
    ]
    assert run_eval("--model", "tiny", "--benchmarks", "geometry3k", *options) == 0
    (entry,) = evaluations(elsewhere / "here")
    assert (entry["name"], entry["prompts"]) == ("geometry3k", 2)


def test_several_models_give_the_papers_table(elsewhere, capsys):
    shutil.copytree(tiny.checkpoint_path("hard"), elsewhere / "third")
    models = [word for name in ("tiny", "tiny-hard", "third") for word in ("--model", name)]
    assert (
        run_eval(*models, "--benchmarks", "tiny-test,tiny-ood", "--limit", 3, "--samples", 2, "--out", "t")
        == 0
    )
    scores = {
        m: {e["name"]: 100 * e["accuracy"] for e in evaluations(elsewhere / "t" / m)}
        for m in ("tiny", "tiny-hard")
    }
    rows = list(csv.DictReader((elsewhere / "t" / "comparison.csv").open()))
    assert [row["Model"] for row in rows] == ["tiny", "tiny-hard", "third"]
    assert list(rows[0]) == ["Model", "tiny-test", "tiny-ood", "Avg."]
    for row in rows[:2]:
        assert float(row["tiny-test"]) == pytest.approx(scores[row["Model"]]["tiny-test"], rel=1e-5)
        assert float(row["Avg."]) == pytest.approx(sum(scores[row["Model"]].values()) / 2, rel=1e-5)
    assert rows[2] | {"Model": ""} == rows[1] | {"Model": ""}, "the same weights draw the same"
    best = max(rows, key=lambda row: float(row["Avg."]))
    assert f"**{float(best['Avg.']):.2f}**" in (elsewhere / "t" / "comparison.md").read_text()
    assert f"\\textbf{{{float(best['Avg.']):.2f}}}" in (elsewhere / "t" / "comparison.tex").read_text()
    assert "| Model |" in capsys.readouterr().out


def test_a_run_is_evaluated_as_it_was_trained(elsewhere, save_tiny):
    run = elsewhere / "runs" / "x"
    save_tiny(run, 8)
    chosen = [
        "model.max_pixels=3136",
        "model.min_pixels=784",
        "reward.grader=mathruler",
        "rollout.max_tokens=20",
    ]
    (run / "config.json").write_text(json.dumps(to_dict(apply_settings(recipes.get("tiny"), chosen))))
    command = [
        "eval",
        "--model",
        str(run),
        "--benchmarks",
        "tiny-test",
        "--limit",
        "2",
        "--samples",
        "1",
        "--quiet",
    ]
    assert main(command) == 0
    (entry,) = evaluations(run / "eval")
    assert entry["when"] == "step-8"
    expected = {"grader": "mathruler", "min_pixels": 784, "max_pixels": 3136, "max_tokens": 20}
    assert {name: entry["settings"][name] for name in expected} == expected
    assert main([*command, "--grader", "pivot"]) == 0
    assert evaluations(run / "eval")[0]["settings"]["grader"] == "pivot"
    assert "| tiny-test | step-8 |" in (run / "checkpoints" / "step-8" / "model" / "README.md").read_text()


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A small real run that saw images of other sizes than the tiny model's files say."""
    small = [
        "train.steps=1", "train.prompts_per_step=2", "train.minibatch_prompts=2", "rollout.responses=2",
        "rollout.max_tokens=24", "rollout.max_tries=1", "data.size=4", "eval.every=0",
        "eval.final_prompts=2", "eval.final_samples=2",
        "model.min_pixels=784", "model.max_pixels=3136", "reward.grader=mathruler",
    ]  # fmt: skip
    settings = [word for setting in small for word in ("--set", setting)]
    out = tmp_path_factory.mktemp("trained") / "a"
    assert (
        main(["train", "--recipe", "tiny", "--method", "dapo", "--out", str(out), "--quiet", *settings]) == 0
    )
    return out


@pytest.fixture
def trained(elsewhere, original):
    shutil.copytree(original, elsewhere / "runs" / "a")
    return "runs/a"


SMALL = ["eval", "--quiet", "--benchmarks", "tiny-test,tiny-ood", "--limit", "2", "--samples", "2"]


def test_a_base_model_is_evaluated_as_the_run_it_is_compared_with(elsewhere, trained, capsys):
    capsys.readouterr()
    assert main([*SMALL, "--model", "tiny", "--model", trained]) == 0
    said = capsys.readouterr().out
    assert (
        f"tiny: images of 784 to 3136 pixels, grader mathruler, at most 24 tokens, float32 (as {trained})"
        in said
    )
    assert (
        f"{trained}: images of 784 to 3136 pixels, grader mathruler, at most 24 tokens, float32 (its run)"
        in said
    )
    base = evaluations(elsewhere / "eval" / "tiny")
    after = [e for e in evaluations(elsewhere / trained / "eval") if e["when"] == "step-1"]
    own = [e for e in evaluations(elsewhere / trained / "eval") if e["when"] == "after" and not e["blank"]]
    for first, *others in zip(base, after, own, strict=True):
        for other in others:
            for name in ("min_pixels", "max_pixels", "grader", "max_tokens", "dtype", "template"):
                assert first["settings"][name] == other["settings"][name]
    assert "Note" not in (elsewhere / "eval" / "comparison.md").read_text()
    assert not evaluation_table(read_run(trained)).has_notes, "the run's own scores were measured alike"


def test_a_table_of_other_limits_says_so_beside_the_row(elsewhere, trained, capsys):
    models = ["--model", "tiny", "--model", "tiny-hard", "--model", trained]
    assert main([*SMALL, *models, "--recipe", "tiny", "--grader", "pivot", "--out", "t"]) == 0
    note = "image limits 784 to 3136 pixels (others 3136 to 12544 pixels); response limit 24 (others 96)"
    rows = list(csv.DictReader((elsewhere / "t" / "comparison.csv").open()))
    assert {row["Model"]: row["Note"] for row in rows} == {"tiny": "", "tiny-hard": "", trained: note}
    said = capsys.readouterr().out
    assert "tiny: images of 3136 to 12544 pixels (recipe tiny: the model's files)" in said
    for text in (said, *((elsewhere / "t" / f"comparison.{end}").read_text() for end in ("md", "tex"))):
        assert note in text
    options = ["--min-pixels", "3136", "--max-pixels", "6272", "--max-tokens", "24", "--out", "u"]
    assert main([*SMALL, *models, *options, "--grader", "pivot"]) == 0
    assert "Note" not in (elsewhere / "u" / "comparison.md").read_text()
    limits = {
        (e["settings"]["min_pixels"], e["settings"]["max_pixels"])
        for name in ("tiny", "tiny-hard", "a")
        for e in evaluations(elsewhere / "u" / name)
    }
    assert limits == {(3136, 6272)}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--model", "tiny", "--benchmarks", "geometry4k"], "Did you mean 'geometry3k'"),
        (["--model", "tiny", "--benchmarks", "we-math,mmk12", "--path", "rows.parquet"], "expected NAME=FILE"),
        (["--model", "tiny", "--benchmarks", "we-math", "--path", "rows.parquet"], "rows.parquet does not exist"),
        (["--model", "tiny", "--benchmarks", "realworldqa"], "hub cannot be reached"),
        (["--model", "tiny", "--benchmarks", "ood"], "ScienceQA"),
        (["--model", "tiny", "--benchmarks", "papr"], "Did you mean 'paper'"),
        (["--model", "tiny", "--benchmarks", "tiny-test", "--samples", "0"], "at least 1"),
        (["--model", "tiny", "--benchmarks", "tiny-test", "--limit", "0"], "at least 1"),
        (["--model", "tiny", "--benchmarks", "tiny-test", "--temperature", "-1"], "at least 0"),
        (["--model", "tiny", "--benchmarks", "tiny-test", "--temperature", "nan"], "--temperature is nan; it must be"),
        (["--model", "tiny", "--benchmarks", "tiny-test", "--answer", "box"], "the answer form 'box' has 0 groups"),
        (["--model", "tiny", "--benchmarks", "tiny-test", "--recipe", "geo3k"], "There is no recipe 'geo3k'"),
        (["--model", "tiny", "--benchmarks", "tiny-test", "--min-pixels", "20000"], "at most 12544 pixels"),
        (["--model", "owner/none", "--benchmarks", "tiny-test"], "hub cannot be reached"),
        (["--model", "tiny", "--benchmarks", "tiny-test", "--device", "gpu"], "the device is 'gpu', but must be auto"),
        (["--model", "tiny", "--benchmarks", "tiny-test", "--max-tokens", "0"], "--max-tokens is 0; it must be at"),
        (["--model", "tiny"], "name what to evaluate on"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(capsys, options, said):
    assert main(["eval", *options]) == 2
    message = capsys.readouterr().err
    assert said in message
    assert message.count("\n") == 1


def test_a_group_stands_for_its_benchmarks_in_the_papers_order(elsewhere, monkeypatch):
    from pivot.cli import evaluating as command
    from pivot.evaluation.sets import EvaluationSet
    from pivot.tiny import procedural

    def load_sets(names, options):
        return [EvaluationSet(name, list(procedural.dataset("test", 1))) for name in names]

    monkeypatch.setattr(command, "load_sets", load_sets)
    options = ["--samples", 1, "--limit", 1, "--max-tokens", 8]
    assert run_eval("--model", "tiny", "--benchmarks", "geometry3k,paper,tiny-test", *options) == 0
    found = evaluations(elsewhere / "eval" / "tiny")
    assert [entry["name"] for entry in found] == [
        "geometry3k", "mathverse", "mathvista", "we-math", "mmk12", "logicvista", "counting", "mathverse-v",
        "tiny-test",
    ]  # fmt: skip
    assert {entry["limit"] for entry in found} == {1}, "how many rows were asked for stands beside the score"


def test_the_groups_are_listed(capsys):
    assert main(["benchmarks"]) == 0
    shown = capsys.readouterr().out
    ood = "--benchmarks ood: scienceqa, hallusionbench, chartqapro, infographicvqa, realworldqa"
    assert ood in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 80
    assert main(["benchmarks", "--json"]) == 0
    known = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    groups = {one["name"]: one["groups"] for one in known if one["use"] != "training"}
    assert groups["mmmu-pro"] == ["paper-9"]
    assert groups["geometry3k"] == ["paper", "paper-9"]
    assert all(one["groups"] == [] for one in known if one["use"] == "training")


def test_without_vllm_it_says_so(capsys):
    try:
        import vllm  # noqa: F401
    except ImportError:
        assert (
            run_eval("--model", "tiny", "--benchmarks", "tiny-test", "--limit", 1, "--sampler", "vllm") == 2
        )
        assert "needs vLLM" in capsys.readouterr().err
    else:
        pytest.skip("vLLM is here")
