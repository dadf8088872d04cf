"""One entry of eval/scores.json from graded prompts; docs/run_folder.md describes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pivot.durable import write_json
from pivot.evaluate.sampling import GradedPrompt
from pivot.evaluate.scoring import Graded, accuracy, bootstrap_interval, by_category, mean_pass_at_k


def as_graded(found: Sequence[GradedPrompt]) -> list[Graded]:
    """What the scores are computed from."""
    return [
        Graded(
            item.prompt.id,
            tuple(bool(r.reward and r.reward.correct) for r in item.responses),
            item.prompt.task,
            item.prompt.columns,
        )
        for item in found
    ]


def summarise(found: Sequence[GradedPrompt], **labels: Any) -> dict[str, Any]:
    """Accuracy@k with its interval, pass@k, format, length and categories, under the given labels."""
    graded = as_graded(found)
    responses = [r for item in found for r in item.responses]
    num_samples = len(found[0].responses)
    powers = [k for k in (1, 2, 4, 8, 16, 32) if k <= num_samples]
    return {
        **labels,
        "samples": num_samples,
        "prompts": len(found),
        "accuracy": accuracy(graded),
        "interval": list(bootstrap_interval(graded)),
        "pass_at_k": {str(k): mean_pass_at_k(graded, k) for k in powers},
        "format": sum(r.reward.format for r in responses if r.reward) / len(responses),
        "length": sum(len(r) for r in responses) / len(responses),
        "truncated": sum(r.truncated for r in responses) / len(responses),
        "categories": by_category(graded),
    }


def add_scores(path: Path, entries: Sequence[dict[str, Any]]) -> None:
    """Write entries into a scores.json; one with the same name, moment and blankness is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(path.read_bytes()).get("evaluations", []) if path.exists() else []
    new = {_key(entry) for entry in entries}
    kept = [entry for entry in known if _key(entry) not in new]
    write_json(path, {"version": 1, "evaluations": [*kept, *entries]})


def _key(entry: dict[str, Any]) -> tuple[Any, ...]:
    return entry.get("name"), entry.get("when"), bool(entry.get("blank"))
