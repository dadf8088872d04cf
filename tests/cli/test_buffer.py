"""`pivot buffer` on real folders: a buffer, a checkpoint, a run."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from pivot.cli import main
from pivot.experience import ExperienceBuffer, StoredResponse
from pivot.runs.checkpoint import CheckpointStore

WORDS = ["[UNK]", "the", "angle", "is", "70", "\x1b[31mred"]


def buffer() -> ExperienceBuffer:
    """Row `a` is not eligible, `b` has the largest weight, `c` has hostile text, `old` was recorded only once."""
    filled = ExperienceBuffer(responses_per_prompt=4)

    def visit(prompt_id: str, k: int, step: int, *responses: StoredResponse) -> None:
        filled.record(prompt_id, num_correct=k, num_responses=8, responses=responses, step=step)

    visit("old", 1, 1, StoredResponse([1, 1]))
    visit("a", 8, 2, StoredResponse([1]))
    scores = [(0.9, 0.9), (0.2, 0.1), (0.1, 0.4), (0.5, 0.5)]
    scored = [
        StoredResponse([1, 2, 3, index], entropy=h, dependency=v) for index, (h, v) in enumerate(scores)
    ]
    visit("b", 4, 5, *scored)
    visit("c [bold]", 3, 6, StoredResponse([5, 4]))
    return filled


def save_run(run: Path, *, with_buffer: bool = True) -> Path:
    def write(folder: Path) -> None:
        tokenizer = Tokenizer(
            models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]")
        )
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder / "model")
        if with_buffer:
            buffer().save(folder / "buffer")

    return CheckpointStore(run).save(6, write).path


def overview(capsys: pytest.CaptureFixture, *arguments: object) -> dict:
    assert main(["buffer", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_runs_newest_checkpoint_is_shown_decoded(tmp_path, capsys):
    save_run(tmp_path)
    shown = overview(capsys, tmp_path)
    assert shown["stats"]["size"] == 4
    assert shown["stats"]["eligible"] == 3
    assert [row["prompt_id"] for row in shown["top"]] == ["b", "c [bold]", "old"]
    assert [row["prompt_id"] for row in shown["oldest"]] == ["old", "a", "b", "c [bold]"]
    assert shown["newest"][0]["prompt_id"] == "c [bold]"
    anchor = shown["top"][0]["anchor"]
    assert anchor["token_ids"] == [1, 2, 3, 2], "of the two lowest entropies the higher dependency (Eq. 7)"
    assert anchor["text"] == "the angle is angle"
    assert (anchor["entropy"], anchor["dependency"], anchor["age"]) == (0.1, 0.4, 1)
    assert shown["top"][1]["anchor"]["scored"] is False


def test_of_two_or_three_entropy_alone_decides(tmp_path, capsys):
    """V of so few candidates is never computed (training/anchors.py)."""
    made = ExperienceBuffer()
    for name, entropies in (("two", (0.3, 0.1)), ("four", (0.3, 0.1, 0.2, 0.4))):
        responses = [StoredResponse([5, i], entropy=h) for i, h in enumerate(entropies)]
        made.record(name, num_correct=len(responses), num_responses=6, responses=responses, step=1)
    made.save(tmp_path / "buffer")
    shown = {row["prompt_id"]: row["anchor"] for row in overview(capsys, tmp_path / "buffer")["top"]}
    assert (shown["two"]["token_ids"], shown["two"]["entropy"], shown["two"]["dependency"]) == (
        [5, 1],
        0.1,
        None,
    )
    assert (shown["four"]["token_ids"], shown["four"]["scored"]) == ([5, 3], False), "the newest"
    assert main(["buffer", str(tmp_path / "buffer")]) == 0
    assert "(H 0.100, V not needed)" in capsys.readouterr().out


def test_run_checkpoint_and_buffer_folders_mean_the_same(tmp_path, capsys):
    checkpoint = save_run(tmp_path)
    shown = [overview(capsys, path) for path in (tmp_path, checkpoint, checkpoint / "buffer")]
    assert shown[0] == shown[1] == shown[2]


def test_the_tables_say_it_all_and_nothing_reaches_the_terminal_raw(tmp_path, capsys):
    save_run(tmp_path)
    assert main(["buffer", str(tmp_path), "--top", "3"]) == 0
    text = capsys.readouterr().out
    for words in (
        "rows",
        "eligible",
        "Rows by success rate",
        "kB",
        "Oldest",
        "Newest",
        "4/8",
        "c [bold]",
        "the angle is",
    ):
        assert words in text
    assert "\x1b" not in text


def test_without_a_tokenizer_token_ids_are_shown(tmp_path, capsys):
    buffer().save(tmp_path)
    assert overview(capsys, tmp_path)["top"][0]["anchor"]["text"] is None
    assert main(["buffer", str(tmp_path)]) == 0
    assert "[1, 2, 3, 2]" in capsys.readouterr().out


def test_an_empty_buffer(tmp_path, capsys):
    ExperienceBuffer().save(tmp_path)
    assert main(["buffer", str(tmp_path)]) == 0
    assert "no prompt has been solved yet" in capsys.readouterr().out


def test_mistakes_are_one_sentence(tmp_path, capsys):
    save_run(tmp_path / "dapo", with_buffer=False)
    (tmp_path / "empty").mkdir()
    for path, words in [
        (tmp_path / "none", "there is no folder"),
        (tmp_path / "empty", "contains neither a buffer"),
        (tmp_path / "dapo", "without replay"),
    ]:
        assert main(["buffer", str(path)]) == 2
        error = capsys.readouterr().err
        assert words in error
        assert len(error.splitlines()) == 1


def test_a_damaged_buffer_is_named(tmp_path, capsys):
    checkpoint = save_run(tmp_path)
    path = checkpoint / "buffer" / "experience.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert main(["buffer", str(tmp_path)]) == 2
    assert "is damaged (wrong checksum)" in capsys.readouterr().err
