"""Kinds of damage to a run's folder, what each command must make of them, and how to try one.

`DAMAGES` is the whole list. `inflict` runs the command of a damage on a damaged copy of a run and returns what
happened; `wrong` says how that differs from what is expected. The tests and the soak use both:

    whole = make_run(small_config(METHOD, *SETTINGS), folder / "whole")
    for damage in DAMAGES:
        ended = inflict(damage, whole, folder / damage.name)
        print(damage.name, damage.outcome, wrong(damage, ended))
"""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Literal

from fault_harness import Ended

from pivot.cli import main
from pivot.config import Config
from pivot.runs.run import train

METHOD = "pivot-grpo"
"""Without a filter every step has rollouts."""
SETTINGS = (
    "train.steps=3",
    "train.prompts_per_step=2",
    "rollout.max_tokens=64",
    "checkpoint.every=1",
    "checkpoint.keep_last=3",
    "log.rollouts_per_step=1",
    "log.rollouts_every=1",
)
"""Of the run that is damaged, beside those of `small_config`."""
EVAL = ("--benchmarks", "tiny-test", "--limit", "2", "--samples", "1", "--quiet")
LAST = "checkpoints/step-3"
WEIGHTS = f"{LAST}/model/model.safetensors"

Outcome = Literal["refused", "repaired", "noticed"]
"""One sentence and exit code 2; exit code 0 and everything is as before; exit code 0 and the damage is named."""


@dataclass(frozen=True)
class Damage:
    """What is done to a run's folder, the command that follows, and what it must say."""

    name: str
    harm: Callable[[Path], object]
    command: str
    """`resume`, `accept` (resume with --accept-...), `eval`, `attention`, `train` (from its weights), `report`,
    `compare` or `buffer`."""
    outcome: Outcome
    words: tuple[str, ...] = ()
    """All of them are said."""


def make_run(config: Config, out: Path) -> Path:
    """A finished and evaluated run, to be damaged in copies."""
    train(config, out, quiet=True)
    ended = _call("eval", "--model", out, *EVAL)
    assert ended.code == 0, ended.said
    # As a crash behind the last step leaves it: `--resume` would only show a finished run.
    status = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps(status | {"status": "running"}))
    return out


def inflict(damage: Damage, whole: Path, run: Path) -> Ended:
    """Damage a copy of `whole` at `run` and run the command on it."""
    shutil.copytree(whole, run)
    damage.harm(run)
    return _call(*_arguments(damage.command, run))


def wrong(damage: Damage, ended: Ended) -> list[str]:
    """How an outcome differs from the expected one; empty if it does not."""
    found = [f"lacks {words!r}" for words in damage.words if words not in ended.said]
    if ended.code != (2 if damage.outcome == "refused" else 0):
        found.append(f"exit code {ended.code}")
    if "Traceback" in ended.said:
        found.append("a traceback")
    return found


def _arguments(command: str, run: Path) -> list[object]:
    return {
        "resume": ["train", "--resume", run, "--no-report", "--quiet"],
        "accept": [
            "train", "--resume", run, "--no-report", "--quiet", "--accept-lost-history", "--accept-changed-config",
        ],
        "eval": ["eval", "--model", run, *EVAL],
        "attention": ["attention", "--model", run, "--data", "tiny", "--limit", "1", "--out", run / "attention"],
        "train": ["train", "--model", run, "--out", run / "next", "--steps", "1", "--no-report", "--quiet"],
        "report": ["report", run, "--no-figures"],
        "compare": ["compare", run, "--out", run / "comparison"],
        "buffer": ["buffer", run],
    }[command]  # fmt: skip


def _call(*arguments: object) -> Ended:
    """`pivot ARGUMENTS` in this process."""
    said = StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = main([str(argument) for argument in arguments])
    return Ended(code, said.getvalue())


def on(name: str, harm: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda run: harm(run / name)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def zero_part(path: Path) -> None:
    data = bytearray(path.read_bytes())
    start = len(data) // 2
    data[start : start + 4096] = bytes(4096)
    path.write_bytes(data)


def edit_lines(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[Path], None]:
    def harm(path: Path) -> None:
        path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))

    return harm


def edit_config(run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    config["train"]["lr"] = 0.125
    (run / "config.json").write_text(json.dumps(config))


def change_score(line: bytes) -> bytes:
    return json.dumps(json.loads(line) | {"reward/accuracy": 0.987, "answer": "changed"}).encode() + b"\n"


def rename_checkpoint(run: Path) -> None:
    (run / LAST).rename(run / "checkpoints" / "step-7")


def copy_checkpoint(run: Path) -> None:
    shutil.copytree(run / LAST, run / "checkpoints" / "step-4")


def make_foreign(run: Path) -> None:
    """As if the checkpoints had been copied here from another run."""
    status = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(status | {"id": "another"}))


def list_nothing(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"files": {}}))


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def history_damages() -> list[Damage]:
    harms: dict[str, tuple[Callable[[Path], object], str]] = {
        "row lost": (edit_lines(lambda lines: [lines[0], *lines[2:]]), "step 2 missing"),
        "cut": (cut, "missing"),
        "emptied": (empty, "steps 1-3 missing"),
        "zeroed": (zero, "steps 1-3 missing"),
        "deleted": (os.unlink, "steps 1-3 missing"),
        "row repeated": (edit_lines(lambda lines: [*lines[:2], lines[1], *lines[2:]]), "step 2 repeated"),
        "rows swapped": (edit_lines(lambda lines: [lines[1], lines[0], *lines[2:]]), "rows out of order"),
        "row changed": (edit_lines(lambda lines: [lines[0], change_score(lines[1]), *lines[2:]]), "step 2 changed"),
        "row garbled": (edit_lines(lambda lines: [lines[0], b"\x00{\n", *lines[2:]]), "line 2 unreadable"),
    }  # fmt: skip
    return [
        Damage(f"{file}: {kind}", on(file, harm), "resume", "refused", (file, words, "--accept-lost-history"))
        for file in ("metrics.jsonl", "rollouts.jsonl")
        for kind, (harm, words) in harms.items()
    ]


def json_damages() -> list[Damage]:
    """Cut, empty, zeroed and missing JSON files, in every command that reads them."""
    repaired: dict[str, dict[str, str]] = {
        "run.json": {"resume": "is damaged", "report": "", "buffer": "", "eval": ""},
        "config.json": {
            "resume": "the file is restored",
            "eval": "comes from step-3",
            "report": "",
            "buffer": "",
        },
        "eval/scores.json": {"eval": "computed again from the samples", "report": ""},
    }
    found = []
    for file, commands in repaired.items():
        for command, words in commands.items():
            # Every kind of damage where the file matters most, one kind elsewhere.
            kinds = {"empty": empty, "cut": cut, "zeroed": zero} if words else {"cut": cut}
            for kind, harm in kinds.items():
                found.append(
                    Damage(f"{file}: {kind}, {command}", on(file, harm), command, "repaired", (words,))
                )
    return [
        *found,
        Damage("config.json: deleted, resume", on("config.json", os.unlink), "resume", "repaired"),
        Damage(
            "every JSON file cut, compare",
            lambda run: [cut(run / file) for file in repaired],
            "compare",
            "repaired",
        ),
    ]


DAMAGES = [
    *history_damages(),
    *json_damages(),
    Damage("metrics.jsonl: row lost, accepted", on("metrics.jsonl", edit_lines(lambda lines: lines[1:])),
           "accept", "noticed", ("metrics.jsonl: step 1 missing", "continuing without these rows")),
    Damage("config.json: edited", edit_config, "resume", "refused",
           ("train.lr is 0.125, was", "--accept-changed-config")),
    Damage("config.json: edited, accepted", edit_config, "accept", "noticed", ("continuing with the changed",)),
    Damage("checkpoint renamed", rename_checkpoint, "resume", "noticed",
           ("step-7 is damaged (it is the checkpoint of step 3 under another name)", "resuming from step-2")),
    Damage("checkpoint copied under another name", copy_checkpoint, "resume", "noticed", ("step-4 is damaged",)),
    Damage("checkpoints of another run", make_foreign, "resume", "refused", ("belongs to another run",)),
    Damage("checkpoint of another run, eval", make_foreign, "eval", "refused", ("belongs to another run",)),
    Damage("checkpoints deleted", on("checkpoints", shutil.rmtree), "resume", "refused", ("the run had saved step 3",)),
    Damage("newest checkpoint deleted", on(LAST, shutil.rmtree), "resume", "noticed", ("step-3 is missing",)),
    Damage("weights zeroed in part, resume", on(WEIGHTS, zero_part), "resume", "noticed",
           ("checksum differs", "resuming from step-2")),
    Damage("weights zeroed in part, eval", on(WEIGHTS, zero_part), "eval", "refused",
           ("model/model.safetensors: checksum differs", "or use")),
    Damage("weights zeroed in part, attention", on(WEIGHTS, zero_part), "attention", "refused", ("checksum differs",)),
    Damage("weights zeroed in part, train --model", on(WEIGHTS, zero_part), "train", "refused", ("checksum differs",)),
    Damage("weights cut, eval", on(WEIGHTS, cut), "eval", "refused", ("bytes instead of",)),
    Damage("checksums deleted, eval", on(f"{LAST}/checksums.json", os.unlink), "eval", "refused",
           ("checksums.json: missing",)),
    Damage("checksums list nothing, eval", on(f"{LAST}/checksums.json", list_nothing), "eval", "refused",
           ("not in checksums.json",)),
    Damage("checksums list nothing, resume", on(f"{LAST}/checksums.json", list_nothing), "resume", "noticed",
           ("not in checksums.json", "resuming from step-2")),
    Damage("metrics.jsonl: a folder", on("metrics.jsonl", make_folder), "resume", "refused", ("is not a file",)),
    Damage("rollouts.jsonl: a folder, report", on("rollouts.jsonl", make_folder), "report", "refused",
           ("is not a file",)),
    Damage("run.json: NaN", lambda run: (run / "run.json").write_text('{"status": NaN}'), "resume", "repaired",
           ("is damaged",)),
    Damage("eval/scores.json: no list, report",
           lambda run: (run / "eval/scores.json").write_text('{"evaluations": 5}'), "report", "repaired"),
    Damage("tokenizer cut, eval", on(f"{LAST}/model/tokenizer.json", cut), "eval", "refused", ("tokenizer.json",)),
]  # fmt: skip
