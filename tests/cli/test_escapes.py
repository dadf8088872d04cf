"""Names of runs, models, arms and rows with terminal escapes and markup: every command shows them as text."""

import json
import shutil
import xml.etree.ElementTree as ElementTree

import pytest
from PIL import Image

from pivot.cli import main
from pivot.models.loading import resolve_model

HOSTILE = "[red]\x1b[31m\x9b2J\u202e:smile:"
SHOWN = "[red]\\u001b[31m\\u009b2J\\u202e:smile:"
SMALL = ["train.steps=1", "train.prompts_per_step=2", "train.minibatch_prompts=2", "rollout.responses=4",
         "rollout.max_tokens=24", "rollout.max_tries=1", "rollout.max_prompt_tokens=400", "eval.every=0",
         "eval.final_prompts=0", "method.warmup_share=0", "method.dynamic_sampling=false"]  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A model, a data set and a run, all with hostile names."""
    folder = tmp_path_factory.mktemp("escapes")
    model = folder / f"model{HOSTILE}"
    shutil.copytree(resolve_model("tiny"), model)
    (folder / f"data{HOSTILE}").mkdir()
    for i in range(4):
        Image.new("RGB", (56, 56), (40 * i, 0, 90)).save(folder / f"data{HOSTILE}" / f"{i}.png")
    rows = [
        {
            "id": f"{i}{HOSTILE}",
            "problem": f"How many? {HOSTILE}",
            "answer": f"{i}{HOSTILE}",
            "images": [f"{i}.png"],
        }
        for i in range(4)
    ]
    rows.append({"id": f"lost{HOSTILE}", "problem": "?", "answer": "1", "images": ["lost.png"]})
    data = folder / f"data{HOSTILE}" / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = folder / f"run{HOSTILE}"
    settings = [part for setting in SMALL for part in ("--set", setting)]
    given = [
        "train",
        "--recipe",
        "tiny",
        "--model",
        str(model),
        "--data",
        str(data),
        "--out",
        str(run),
        *settings,
    ]
    return {"folder": folder, "model": model, "data": data, "run": run, "train": given}


def commands(world) -> dict[str, list[str]]:
    run, model = str(world["run"]), str(world["model"])
    return {
        "train": world["train"],
        "again": [*world["train"], "--continue"],
        "report": ["report", run],
        "buffer": ["buffer", run],
        "compare": ["compare", run, run, "--out", f"{world['folder']}/compared{HOSTILE}"],
        "eval": ["eval", "--model", run, "--benchmarks", "tiny-test", "--limit", "1", "--samples", "1"],
        "doctor": ["doctor", "--model", model],
        "data": ["data", str(world["data"])],
    }


def check_figures(world) -> None:
    """An XML parser refuses control characters; `$` would be read as mathematics."""
    figures = sorted((world["folder"] / f"compared{HOSTILE}").rglob("*.svg"))
    figures += sorted((world["run"] / "figures").glob("*.svg"))
    assert len(figures) > 3
    for path in figures:
        ElementTree.fromstring(path.read_bytes())


def test_every_command_shows_escapes_and_markup_as_text(world, capsys):
    """One after the other: they look at the run that the first one makes."""
    for name, words in commands(world).items():
        assert main(words) == 0, name
        said = capsys.readouterr()
        both = said.out + said.err
        assert not {"\x1b", "\x9b", "\u202e"} & set(both), name
        assert SHOWN in "".join(both.split()), name
    check_figures(world)


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--model", f"/no/{HOSTILE}"],
        ["eval", "--model", f"/no/{HOSTILE}", "--benchmarks", "tiny-test"],
        ["eval", "--model", "tiny", "--benchmarks", HOSTILE],
        ["report", f"/no/{HOSTILE}"],
        ["compare", f"/no/{HOSTILE}"],
        ["buffer", f"/no/{HOSTILE}"],
        ["sweep", f"/no/{HOSTILE}.yaml"],
        ["methods", HOSTILE],
        ["data", HOSTILE],
        ["doctor", "--recipe", HOSTILE],
        ["doctor", "--set", f"train.steps={HOSTILE}"],
        ["train", "--reward", f"{HOSTILE}:f"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]).replace(HOSTILE, "X"),
)
def test_a_mistake_is_quoted_without_its_escapes(tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert not {"\x1b", "\x9b", "\u202e"} & set(said.out + said.err)
    assert "[red]" in said.err


def test_a_plan_shows_its_names_as_text(tmp_path, capsys):
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        json.dumps(
            {
                "name": "p",
                "title": f"T{HOSTILE}",
                "recipe": "tiny",
                "seeds": 1,
                "benchmarks": ["tiny-test"],
                "arms": {f"a{HOSTILE}": {"method": "dapo"}},
            }
        )
    )
    main(["sweep", str(plan), "--dry-run", "--out", str(tmp_path / "out")])
    said = capsys.readouterr()
    assert not {"\x1b", "\x9b", "\u202e"} & set(said.out + said.err)
    assert SHOWN in said.out + said.err


def test_unknown_options_are_quoted_without_escapes(capsys):
    with pytest.raises(SystemExit):
        main(["train", f"--{HOSTILE}"])
    assert "\x1b" not in capsys.readouterr().err
