"""Evaluate one model on one set: read the samples on disk, draw and grade the missing ones, score them all."""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from pivot import locks
from pivot.data.images import ReadableImage
from pivot.durable import append_bytes, disk_errors, remove_unfinished
from pivot.errors import UserError
from pivot.evaluation.sampling import GradedPrompt, graded_samples
from pivot.evaluation.scoring import HEADER, LABELS, from_rows, sample_rows, summarise
from pivot.evaluation.sets import EvaluationSet
from pivot.evaluation.settings import EvaluationSettings, recorded
from pivot.evaluation.target import Target
from pivot.jsonl import encode_row, read_lines
from pivot.rewards.judge import Judge
from pivot.sampling import Sampler
from pivot.types import Prompt

Track = Callable[[Iterable[Any], str, int, int], Iterable[Any]]
"""(items, description, number already done, total) -> the same items, with their progress displayed."""


def identity(target: Target, set_name: str, settings: EvaluationSettings) -> dict[str, Any]:
    """Everything that a sample's text and grade depend on; only equal identities share a file."""
    return {"version": 1, "set": set_name, "model": target.fingerprint, **recorded(settings)}


@dataclass(frozen=True)
class Evaluator:
    """Evaluates one model on sets.

    Example:
        evaluator = Evaluator(target, open_sampler, judge, Path("eval/tiny"), track)
        entry = evaluator.evaluate(chosen, settings)
    """

    target: Target
    open_sampler: Callable[[], Sampler]
    """Called only if samples are missing: a finished evaluation needs no model."""
    judge: Judge
    out: Path
    track: Track

    def evaluate(self, chosen: EvaluationSet, settings: EvaluationSettings) -> dict[str, Any]:
        """An entry of scores.json."""
        blank = settings.request.blank
        name = f"{chosen.name}-blank" if blank else chosen.name
        labels = {"name": chosen.name, "when": self.target.when, "model": self.target.name, "blank": blank}
        with SamplesFile(self.out, name, identity(self.target, chosen.name, settings), labels) as file:
            samples = file.finished(chosen.prompts)
            missing = [prompt for prompt in chosen.prompts if prompt.id not in samples]
            if missing:
                note = f"{self.target.title} on {chosen.name}{' (blank images)' if blank else ''}"
                asked = [settings.prompt.style.apply(prompt) for prompt in missing]
                drawn = graded_samples(self.open_sampler(), asked, self.judge, settings.request)
                for found in self.track(drawn, note, len(samples), len(chosen.prompts)):
                    samples[found.prompt.id] = file.append(found)
        graded = [from_rows(prompt, samples[prompt.id]) for prompt in chosen.prompts]
        entry = summarise(graded, chosen.metrics, **labels)
        return entry | {"settings": file.identity, "file": file.path.name}


class SamplesFile:
    """The graded samples of one evaluation: a first line with its identity, then one line per sample.

    The file's name holds a digest of the identity (model, set, settings), so samples of different models or settings
    never mix. Each line holds a digest of its prompt, so samples of a row that has changed are drawn again. Finished
    prompts survive a crash. One process at a time writes a file: it is locked until it is closed.

    Example:
        with SamplesFile(Path("eval"), "geometry3k", {"model": "9f2c...", "samples": 8, "seed": 0}) as file:
            done = file.finished(prompts)
    """

    def __init__(
        self, folder: Path, name: str, identity: Mapping[str, Any], labels: Mapping[str, Any] | None = None
    ) -> None:
        """`labels` are written beside the identity, from which scores can be computed again."""
        self.identity, self._labels = dict(identity), dict(labels or {})
        self.num_samples = int(identity["samples"])
        digest = hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()[:12]
        self.path = folder / f"{name.replace('/', '--')}.{digest}.jsonl"
        self._digests: dict[str, str] = {}
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            remove_unfinished(folder)
            self.path.touch()
            lock = locks.acquire(self.path)
        if lock is None:
            raise UserError(
                f"another evaluation is writing {self.path}; wait until it has finished, or give another --out."
            )
        self._lock = lock
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        """Start the file, or check its identity and remove an incomplete last line."""
        lines = list(read_lines(self.path))
        if not lines:
            os.truncate(self.path, 0)
            append_bytes(self.path, encode_row({HEADER: self.identity, LABELS: self._labels}))
            return
        if lines[0].row.get(HEADER) != self.identity:
            raise UserError(
                f"the first line of {self.path} does not match the settings in its name; move the file away and "
                "evaluate again."
            )
        whole = sum(len(line.raw) for line in lines)
        if whole < self.path.stat().st_size:
            os.truncate(self.path, whole)
        elif whole > self.path.stat().st_size:
            append_bytes(self.path, b"\n")

    def close(self) -> None:
        """Let other processes write the file."""
        locks.release(self._lock)

    def __enter__(self) -> SamplesFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def finished(self, prompts: Iterable[Prompt]) -> dict[str, list[dict[str, Any]]]:
        """Prompt id -> its samples in order, for prompts whose samples are all there."""
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
        """Write all samples of a prompt at once; returns the rows."""
        prompt = {"id": graded.prompt.id, "prompt": self._digest(graded.prompt)}
        rows = [{**prompt, "sample": i, **row} for i, row in enumerate(sample_rows(graded))]
        append_bytes(self.path, b"".join(map(encode_row, rows)))
        return rows

    def _digest(self, prompt: Prompt) -> str:
        if prompt.id not in self._digests:
            self._digests[prompt.id] = prompt_digest(prompt)
        return self._digests[prompt.id]


def prompt_digest(prompt: Prompt) -> str:
    """Identifies what the model sees and how it is graded: text, image contents, answer and matching rules."""
    rules = {name: prompt.columns.get(name) for name in ("matching", "choices", "accepted")}
    parts = [prompt.question, prompt.answer, len(prompt.images), rules]
    parts += [prompt.system] if prompt.system else []
    digest = hashlib.sha256(json.dumps(parts).encode())
    for source in prompt.images:
        digest.update(source.read() if isinstance(source, ReadableImage) else source.open().tobytes())
    return digest.hexdigest()[:16]
