"""The graded samples of one evaluation on disk: a first line that says of what, then one line a sample.

The file's name carries a digest of its identity (model, set, settings), so that samples of another model or setting
are never mixed in; a line carries a digest of its prompt, so that samples of a changed row are not taken for done.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pivot.data.images import ReadableImage
from pivot.durable import append_bytes, write_bytes
from pivot.errors import UserError
from pivot.evaluate.sampling import GradedPrompt
from pivot.jsonl import encode_row, read_lines
from pivot.types import Prompt

HEADER = "identity"


class SamplesFile:
    """Graded samples that survive a crash; prompts that are finished are not drawn again.

    Example:
        file = SamplesFile(Path("eval"), "geometry3k", {"model": "9f2c...", "samples": 8, "seed": 0})
        done = file.finished(prompts)
    """

    def __init__(self, folder: Path, name: str, identity: Mapping[str, Any]) -> None:
        self.identity = dict(identity)
        self.num_samples = int(identity["samples"])
        digest = hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()[:12]
        self.path = folder / f"{name.replace('/', '--')}.{digest}.jsonl"
        self._digests: dict[str, str] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._open()

    def _open(self) -> None:
        """Start the file, or mend its cut last line and check that it is about the same evaluation."""
        lines = list(read_lines(self.path))
        if not lines:
            write_bytes(self.path, encode_row({HEADER: self.identity}))
            return
        if lines[0].row.get(HEADER) != self.identity:
            raise UserError(
                f"{self.path} does not begin with the settings that its name stands for; move it away and "
                "evaluate again."
            )
        whole = b"".join(line.raw for line in lines)
        if len(whole) != self.path.stat().st_size:
            write_bytes(self.path, whole)

    def finished(self, prompts: Iterable[Prompt]) -> dict[str, list[dict[str, Any]]]:
        """Prompt id -> its samples in order, for the prompts all of whose samples are there."""
        found: dict[tuple[str, str], dict[int, dict[str, Any]]] = defaultdict(dict)
        for line in read_lines(self.path):
            if HEADER not in line.row:
                found[line.row["id"], line.row["prompt"]][line.row["sample"]] = line.row
        done = {}
        for prompt in prompts:
            samples = found.get((prompt.id, self._digest(prompt)), {})
            if set(samples) >= set(range(self.num_samples)):
                done[prompt.id] = [samples[i] for i in range(self.num_samples)]
        return done

    def append(self, graded: GradedPrompt) -> list[dict[str, Any]]:
        """Write all samples of a prompt at once; returns the lines."""
        digest = self._digest(graded.prompt)
        rows = [
            {
                "id": graded.prompt.id,
                "prompt": digest,
                "sample": number,
                "correct": response.reward.correct,
                "format": response.reward.format,
                "reason": str(response.reward.reason),
                "extracted": response.reward.extracted,
                "answer": graded.prompt.answer,
                "tokens": len(response),
                "truncated": response.truncated,
                "text": response.text,
            }
            for number, response in enumerate(graded.responses)
            if response.reward is not None
        ]
        append_bytes(self.path, b"".join(map(encode_row, rows)))
        return rows

    def _digest(self, prompt: Prompt) -> str:
        if prompt.id not in self._digests:
            self._digests[prompt.id] = prompt_digest(prompt)
        return self._digests[prompt.id]


def prompt_digest(prompt: Prompt) -> str:
    """What the model sees and what is expected of it: the text, every image's content, the answer and its rules."""
    rules = {name: prompt.columns.get(name) for name in ("matching", "choices", "accepted")}
    told = [prompt.question, prompt.answer, len(prompt.images), rules]
    digest = hashlib.sha256(json.dumps(told).encode())
    for source in prompt.images:
        digest.update(source.read() if isinstance(source, ReadableImage) else source.open().tobytes())
    return digest.hexdigest()[:16]
