"""Files written whole or not at all."""

import errno
import os
import resource
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from pivot.durable import append_bytes, disk_errors, replacing, sha256, sync_tree, write_bytes, write_json
from pivot.errors import UserError
from pivot.jsonl import encode_row, read_rows


@contextmanager
def largest_file(num_bytes: int):
    """A disk that takes no more than `num_bytes` a file: the system refuses as it does when it is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_is_replaced_and_nothing_else_stays(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"x": 1})
    write_json(path, {"x": [2, "é"]})
    assert path.read_text(encoding="utf-8") == '{\n  "x": [\n    2,\n    "é"\n  ]\n}\n'
    assert os.listdir(tmp_path) == ["a.json"]


def test_readers_see_the_old_file_until_the_block_ends(tmp_path):
    path = tmp_path / "a"
    write_bytes(path, b"old")
    with replacing(path) as temporary:
        temporary.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


def replace_half(path: Path) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(b"half")
        raise ZeroDivisionError


def test_a_block_that_raises_changes_nothing(tmp_path):
    path = tmp_path / "a"
    write_bytes(path, b"old")
    with pytest.raises(ZeroDivisionError):
        replace_half(path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_disk_that_refuses_changes_nothing_and_is_named(tmp_path):
    path = tmp_path / "a"
    write_bytes(path, b"old")
    with largest_file(1_000), pytest.raises(UserError, match=f"cannot write {path}: file too large"):
        write_bytes(path, b"x" * 5_000)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_an_append_that_is_refused_half_way_leaves_no_torn_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    append_bytes(path, b'{"step": 1}\n')
    with largest_file(100), pytest.raises(UserError, match="file too large"):
        append_bytes(path, b"x" * 500 + b"\n")
    append_bytes(path, b'{"step": 2}\n', sync=False)
    assert path.read_bytes() == b'{"step": 1}\n{"step": 2}\n'


def test_a_full_disk_says_so():
    sentence = "cannot write runs/x: no space left on device; free some space"
    with pytest.raises(UserError, match=sentence), disk_errors(Path("runs/x")):
        Path("/dev/full").write_bytes(b"x")


def test_a_librarys_own_exception_is_read_by_its_number():
    class LibraryError(Exception):
        pass

    message = f"Error while serializing: I/O error: whatever (os error {errno.ENOSPC})"
    with (
        pytest.raises(UserError, match="no space left on device; free"),
        disk_errors(Path("x"), LibraryError),
    ):
        raise LibraryError(message)
    with (
        pytest.raises(UserError, match="cannot write x: header too large"),
        disk_errors(Path("x"), LibraryError),
    ):
        raise LibraryError("header too large")


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(UserError, match="no such file or directory"):
        write_bytes(tmp_path / "none" / "a", b"")


def test_strict_json_has_no_nan(tmp_path):
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    assert os.listdir(tmp_path) == []


def test_checksum_and_sync_of_a_tree(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a").write_bytes(b"abc")
    sync_tree(tmp_path)
    assert (
        sha256(tmp_path / "deep" / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )


def test_what_is_not_finite_becomes_null_and_is_listed(tmp_path):
    row = {
        "step": 1,
        "loss": float("nan"),
        "list": [1.0, float("inf")],
        "nest": {"a": -float("inf")},
        "fine": 0.1,
    }
    (tmp_path / "rows.jsonl").write_bytes(encode_row(row))
    assert read_rows(tmp_path / "rows.jsonl") == [
        {
            "step": 1,
            "loss": None,
            "list": [1.0, None],
            "nest": {"a": None},
            "fine": 0.1,
            "nonfinite": ["loss", "list", "nest"],
        }
    ]


def test_any_text_survives_a_row(tmp_path):
    row = {"step": 1, "text": "שלום \ud800 \x00 \u2028 \n é"}
    (tmp_path / "rows.jsonl").write_bytes(encode_row(row) + encode_row(row))
    assert read_rows(tmp_path / "rows.jsonl") == [row, row]


@pytest.mark.parametrize("tail", [b'{"step": 3', b'{"step": 3, "a', b"\x00\x00\x00", b"7", b'{"step": 3}x\n'])
def test_an_unfinished_last_line_is_passed_over(tmp_path, tail):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n' + tail)
    assert read_rows(path) == [{"step": 1}, {"step": 2}]


def test_a_last_line_that_lacks_only_its_end_is_whole(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}')
    assert read_rows(path) == [{"step": 1}, {"step": 2}]


def test_a_broken_line_in_the_middle_is_damage(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(UserError, match="line 2 is not a JSON object"):
        read_rows(path)


def test_a_missing_file_has_no_rows(tmp_path):
    assert read_rows(tmp_path / "none.jsonl") == []


def test_temporary_files_of_killed_writers_are_removed_by_the_next_writer(tmp_path):
    path = tmp_path / "scores [1].json"
    killed = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    (tmp_path / f".scores [1].json.tmp-{int(killed.stdout)}").write_text("half")
    (tmp_path / f".other.json.tmp-{int(killed.stdout)}").write_text("half")
    (tmp_path / f".scores [1].json.tmp-{os.getppid()}").write_text("another process writes this now")
    write_json(path, 1)
    left = sorted(os.listdir(tmp_path))
    assert left == [
        f".other.json.tmp-{int(killed.stdout)}",
        f".scores [1].json.tmp-{os.getppid()}",
        path.name,
    ]
