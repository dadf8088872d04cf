"""Prompts as the files that `pivot train` and `pivot eval` read, with a digest of rows and pixels."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from pivot.durable import write_bytes
from pivot.types import Prompt


def write_set(prompts: Sequence[Prompt], path: Path) -> str:
    """Rows and images; returns `digest_of` them."""
    lines = []
    for prompt in prompts:
        name = f"images/{prompt.id.replace('/', '-')}.png"
        target = path.parent / name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            prompt.images[0].open().save(target)
        row = {"id": prompt.id, "images": [name], "problem": prompt.question, "answer": prompt.answer}
        lines.append(json.dumps(row))
    write_bytes(path, ("\n".join(lines) + "\n").encode())
    return digest_of(path)


def digest_of(path: Path) -> str:
    """Of a set's rows and of the pixels of its images."""
    text = path.read_text()
    digest = hashlib.sha256(text.encode())
    for line in text.splitlines():
        for name in json.loads(line)["images"]:
            with Image.open(path.parent / name) as picture:
                digest.update(picture.tobytes())
    return digest.hexdigest()[:16]
