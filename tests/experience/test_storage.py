"""The buffer's file: exact, replaced atomically, and refused if any byte differs."""

import json
import os
import resource
import tracemalloc

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from pivot.errors import UserError
from pivot.experience import ExperienceBuffer, StoredResponse, storage
from pivot.experience.storage import FILE_NAME, load_state


def filled(num_prompts: int = 20, **limits: int) -> ExperienceBuffer:
    buffer, generator = ExperienceBuffer(seed=5, **limits), np.random.default_rng(0)
    for index in range(num_prompts):
        stored = [
            StoredResponse(
                generator.integers(0, 150_000, int(generator.integers(1, 9))),
                entropy=float(generator.random()) if index % 3 else None,
                dependency=float(generator.random()) if index % 4 else None,
                accuracy=1.0,
                format=float(index % 2),
            )
            for _ in range(index % 5)
        ]
        if index % 2:
            stored = [StoredResponse(r.token_ids, generator.normal(size=len(r)), r.entropy) for r in stored]
        buffer.record(
            f"set/train/{index} ¼ \ud800",
            num_correct=index % 5,
            num_responses=5,
            responses=stored,
            step=index,
        )
    buffer.draw(7)
    return buffer


def assert_same_state(first: dict, second: dict) -> None:
    assert first["meta"] == second["meta"]
    assert first["prompt_ids"] == second["prompt_ids"]
    assert first["arrays"].keys() == second["arrays"].keys()
    for name, array in first["arrays"].items():
        assert array.dtype == second["arrays"][name].dtype
        assert array.tobytes() == second["arrays"][name].tobytes(), name


def test_state_round_trip_is_exact():
    buffer, other = filled(max_prompts=11, responses_per_prompt=3), ExperienceBuffer(seed=1)
    other.load_state_dict(buffer.state_dict())
    assert_same_state(buffer.state_dict(), other.state_dict())
    assert other.draw(6) == buffer.draw(6)


def test_a_state_is_a_snapshot():
    buffer = filled()
    state = buffer.state_dict()
    before = {name: array.copy() for name, array in state["arrays"].items()}
    buffer.draw(9)
    row = next(buffer.rows()).prompt_id
    buffer.update_scores(row, {buffer.candidates(row)[0].serial: (9.0, 9.0)}, step=99)
    for name, array in before.items():
        assert array.tobytes() == state["arrays"][name].tobytes(), name


@pytest.mark.parametrize("num_prompts", [0, 1, 20])
def test_file_round_trip_is_exact(tmp_path, num_prompts):
    buffer = filled(num_prompts)
    buffer.save(tmp_path / "deep" / "buffer")
    other = ExperienceBuffer.load(tmp_path / "deep" / "buffer")
    assert_same_state(buffer.state_dict(), other.state_dict())
    assert other.draw(9) == buffer.draw(9)
    assert other.stats() == buffer.stats()
    assert os.listdir(tmp_path / "deep" / "buffer") == [FILE_NAME]


def test_the_weight_is_not_stored(tmp_path):
    filled().save(tmp_path)
    assert not [name for name in load_file(tmp_path / FILE_NAME) if "weight" in name or "priority" in name]


def test_saving_again_replaces(tmp_path):
    filled(20).save(tmp_path)
    filled(3).save(tmp_path)
    assert len(ExperienceBuffer.load(tmp_path)) == len(filled(3))


def test_every_flipped_byte_is_noticed(tmp_path):
    filled(4).save(tmp_path)
    path = tmp_path / FILE_NAME
    good = path.read_bytes()
    for place in range(0, len(good), 13):
        path.write_bytes(good[:place] + bytes([good[place] ^ 0x10]) + good[place + 1 :])
        with pytest.raises(UserError, match=FILE_NAME):
            ExperienceBuffer.load(tmp_path)


@pytest.mark.parametrize("keep", [0, 5, 400, -1])
def test_a_file_cut_short_is_noticed(tmp_path, keep):
    filled().save(tmp_path)
    path = tmp_path / FILE_NAME
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=FILE_NAME):
        ExperienceBuffer.load(tmp_path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match="no experience buffer in"):
        ExperienceBuffer.load(tmp_path / "nowhere")


def test_another_version_is_refused(tmp_path):
    save_file(
        {"a": np.zeros(1)}, tmp_path / FILE_NAME, metadata={"format": "pivot-experience", "version": "3"}
    )
    with pytest.raises(UserError, match="version 3"):
        load_state(tmp_path)
    save_file({"a": np.zeros(1)}, tmp_path / FILE_NAME)
    with pytest.raises(UserError, match="reads pivot-experience version 2 and earlier"):
        load_state(tmp_path)


def test_a_disk_that_refuses_leaves_the_file_before(tmp_path):
    filled(3).save(tmp_path)
    before = (tmp_path / FILE_NAME).read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
    try:
        with pytest.raises(UserError, match=r"cannot write .*experience.safetensors: file too large"):
            filled(200).save(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / FILE_NAME).read_bytes() == before
    assert os.listdir(tmp_path) == [FILE_NAME]


def test_the_header_is_readable_json(tmp_path):
    filled().save(tmp_path)
    raw = (tmp_path / FILE_NAME).read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["__metadata__"]
    assert json.loads(header["meta"])["generator"]["bit_generator"] == "PCG64"


def test_equal_buffers_have_equal_files(tmp_path):
    files = set()
    for _ in range(20):
        filled().save(tmp_path)
        files.add((tmp_path / FILE_NAME).read_bytes())
    assert len(files) == 1


def test_a_file_of_the_librarys_own_writer_is_read(tmp_path):
    """Checkpoints of earlier versions were written by safetensors itself, with the same content in another order."""
    buffer = filled()
    buffer.save(tmp_path)
    path = tmp_path / FILE_NAME
    with safe_open(path, framework="numpy") as file:
        header = file.metadata()
    save_file(load_file(path), path, metadata=header)
    assert_same_state(ExperienceBuffer.load(tmp_path).state_dict(), buffer.state_dict())


def test_memory_stays_close_to_the_bytes_of_the_token_ids():
    """500 prompts x 8 responses x about 300 tokens; `benchmarks/buffer.py` measures 39,000."""
    generator = np.random.default_rng(0)
    buffer = ExperienceBuffer(responses_per_prompt=8)
    tracemalloc.start()
    try:
        for step in (1, 2):
            for index in range(500):
                stored = [
                    StoredResponse(generator.integers(0, 150_000, n)) for n in generator.integers(250, 351, 5)
                ]
                buffer.record(
                    f"virl/train/{index}", num_correct=5, num_responses=8, responses=stored, step=step
                )
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    token_bytes = buffer.state_dict()["arrays"]["token_ids"].nbytes
    assert buffer.stats().responses == 500 * 8
    assert used <= 1.3 * token_bytes
    assert token_bytes <= buffer.stats().bytes <= used


def test_a_file_of_the_first_version_is_read_and_its_rewards_are_unknown(tmp_path, monkeypatch):
    """Runs of the first version can resume; only Off-PG, which needs the rewards, refuses them."""
    buffer = filled()
    old = buffer.state_dict()
    for name in ("accuracy", "format"):
        del old["arrays"][f"response.{name}"]
    monkeypatch.setattr(storage, "VERSION", 1)
    storage.save_state(old, tmp_path)
    monkeypatch.undo()
    loaded = ExperienceBuffer.load(tmp_path)
    assert len(loaded) == len(buffer)
    rows = [r for row in loaded.rows() for r in loaded.candidates(row.prompt_id)]
    assert rows
    assert all(r.accuracy is None and r.format is None for r in rows)
    known = [r for row in buffer.rows() for r in buffer.candidates(row.prompt_id)]
    assert [r.entropy for r in rows] == [r.entropy for r in known]
