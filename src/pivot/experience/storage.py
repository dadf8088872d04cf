"""The buffer's file: one safetensors file with a checksum, replaced atomically, without pickle.

`FOLDER/experience.safetensors` holds the arrays; its JSON header holds the version, the limits, the counters, the
state of the random generator and the sha256 of everything. Prompt ids are UTF-8 bytes with their lengths, since a
million of them would not fit a header.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from pivot.durable import disk_errors, replacing
from pivot.errors import UserError

FILE_NAME = "experience.safetensors"
FORMAT = "pivot-experience"
VERSION = 2
READABLE = ("1", "2")
"""Version 1 lacks the rewards of the stored responses, which are then unknown."""
_DTYPES = {"|u1": "U8", "|b1": "BOOL", "<i4": "I32", "<i8": "I64", "<f4": "F32", "<f8": "F64"}


def save_state(state: Mapping[str, Any], folder: Path) -> None:
    """Write a buffer's `state_dict` below `folder`, replacing an earlier one atomically."""
    encoded = [prompt_id.encode("utf-8", "surrogatepass") for prompt_id in state["prompt_ids"]]
    arrays = {
        **state["arrays"],
        "prompt_id.bytes": np.frombuffer(b"".join(encoded), dtype=np.uint8),
        "prompt_id.lengths": np.array([len(name) for name in encoded], dtype=np.int64),
    }
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "meta": json.dumps(state["meta"]),
        "sha256": _digest(arrays, json.dumps(state["meta"])),
    }
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / FILE_NAME) as temporary:
        _write(temporary, arrays, metadata)


def _write(path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file. The library's own writer shuffles the metadata, so equal buffers would differ."""
    names = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name in names:
        start, end = end, end + arrays[name].nbytes
        header[name] = {
            "dtype": _DTYPES[arrays[name].dtype.str],
            "shape": list(arrays[name].shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            file.write(np.ascontiguousarray(arrays[name]).data)


def load_state(folder: Path) -> dict[str, Any]:
    """The `state_dict` that `save_state` wrote; raises UserError if the file is missing or damaged."""
    path = folder / FILE_NAME
    if not path.is_file():
        raise UserError(f"no experience buffer in {folder}: {FILE_NAME} is missing.")
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError) as damage:
        raise UserError(f"the experience buffer {path} cannot be read: {damage}.") from damage
    if header.get("format") != FORMAT or header.get("version") not in READABLE:
        found = f"{header.get('format')} version {header.get('version')}"
        raise UserError(f"{path} is {found}, but this pivot reads {FORMAT} version {VERSION} and earlier.")
    if header.get("sha256") != _digest(arrays, header.get("meta", "")):
        raise UserError(
            f"the experience buffer {path} is damaged (wrong checksum): use an earlier checkpoint."
        )
    lengths, data = arrays.pop("prompt_id.lengths"), arrays.pop("prompt_id.bytes").tobytes()
    ends = np.cumsum(lengths).tolist()
    starts = [0, *ends[:-1]]
    prompt_ids = [data[a:b].decode("utf-8", "surrogatepass") for a, b in zip(starts, ends, strict=False)]
    return {"meta": json.loads(header["meta"]), "prompt_ids": prompt_ids, "arrays": arrays}


def _digest(arrays: Mapping[str, np.ndarray], meta: str) -> str:
    digest = hashlib.sha256(meta.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.view(np.uint8).data if array.size else b"")
    return digest.hexdigest()
