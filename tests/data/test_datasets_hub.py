"""The hub: a real cache read offline, and a local server that refuses as the hub does."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

LOAD = """
import json, sys
from pivot.errors import UserError
from pivot.data import DataSpec, load
for name, split in json.loads(sys.argv[1]):
    try:
        print(json.dumps([[p.id, len(p.images)] for p in load(DataSpec(name, split=split)).prompts]))
    except UserError as mistake:
        print(json.dumps(str(mistake)))
"""


def load_all(asked: list[list[str]], home: Path, **environment: str) -> list:
    """The result of each load, in its own process, since the hub library reads its settings at import."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, json.dumps(asked)],
        env={**clean, "HF_HOME": str(home), "HF_HUB_DISABLE_PROGRESS_BARS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def write_cached_set(home: Path, hub_id: str) -> None:
    """A data set as the hub library stores it: blobs and a snapshot of links to them."""
    folder = home / "hub" / f"datasets--{hub_id.replace('/', '--')}"
    commit = "a" * 40
    (folder / "blobs").mkdir(parents=True)
    (folder / "snapshots" / commit / "data").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    buffer = BytesIO()
    Image.new("RGB", (30, 20)).save(buffer, "PNG")
    table = pa.table(
        {
            "images": [
                [{"bytes": buffer.getvalue(), "path": None}],
                [{"bytes": None, "path": "figures/b.png"}],
            ],
            "problem": ["<image>Find x.", "<image>Find y."],
            "answer": ["1", "2"],
            "id": ["7", "8"],
        }
    )
    pq.write_table(table, folder / "blobs" / "rows")
    (folder / "blobs" / "figure").write_bytes(buffer.getvalue())
    (folder / "snapshots" / commit / "figures").mkdir()
    (folder / "snapshots" / commit / "data" / "train-00000-of-00001.parquet").symlink_to(
        "../../../blobs/rows"
    )
    (folder / "snapshots" / commit / "figures" / "b.png").symlink_to("../../../blobs/figure")


def test_cached_set_is_read_offline_and_its_links_are_followed(tmp_path: Path) -> None:
    write_cached_set(tmp_path, "hiyouga/geometry3k")
    found, missing = load_all(
        [["geometry3k", "train"], ["virl39k", "train"]],
        tmp_path,
        HF_HUB_OFFLINE="1",
        HF_ENDPOINT="http://127.0.0.1:1",
    )
    assert found == [["geometry3k/train/7", 1], ["geometry3k/train/8", 1]]
    assert missing.startswith(
        "TIGER-Lab/ViRL39K is not in the local cache and the hub cannot be reached: run `hf"
    )
    assert '--include "images.zip"' in missing
    assert "--set data.path=DIR" in missing


@pytest.fixture
def refusing_hub() -> Iterator[str]:
    """A server that answers as the hub does for a gated, an unknown and a cut-off data set."""

    class Refuse(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            gated = "gated" in self.path
            self.send_response(403 if gated else 404)
            self.send_header("X-Error-Code", "GatedRepo" if gated else "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refuse)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_gated_and_unknown_sets_are_one_sentence_each(tmp_path: Path, refusing_hub: str) -> None:
    gated, unknown = load_all(
        [["owner/gated-set", "train"], ["owner/no-such-set", "train"]], tmp_path, HF_ENDPOINT=refusing_hub
    )
    assert gated.startswith(
        "owner/gated-set is gated: accept its terms at https://huggingface.co/datasets/owner/"
    )
    assert "hf auth login" in gated
    assert unknown.startswith("there is no data set 'owner/no-such-set' on the hub")
    assert "--set data.path=DIR" in unknown
