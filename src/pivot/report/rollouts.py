"""The rollout groups worth looking at: chosen out of `rollouts.jsonl`, shrunk to what a page can carry."""

from __future__ import annotations

import heapq
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

import numpy as np

from pivot.report.run import Run, is_number, read_line_at, read_lines

MOST_GROUPS = 24
MOST_BYTES = 3_000_000
MOST_A_PROMPT = 2
MOST_A_SIDE = 3
"""Correct responses shown of one group, and as many wrong ones."""
PER_TOKEN = ("logprobs", "entropy", "support", "future", "gate", "utility", "advantage_final")
EMBEDDED_IMAGE = re.compile(r"data:image/(png|jpeg|webp|gif);base64,[A-Za-z0-9+/=]+")


@dataclass(frozen=True)
class Summary:
    """Why one might want to look at a group, and where it stands in the file."""

    offset: int
    step: float
    prompt_id: str
    mixed: bool
    """It holds correct and wrong responses."""
    spread: float
    """95% minus 5% quantile of U over all tokens of the group (of the final advantage without U)."""
    dependency: float
    """The largest V(y) of its responses and its anchor; -1 where none was computed."""


def telling_groups(run: Run) -> list[dict[str, Any]]:
    """At most `MOST_GROUPS` groups within `MOST_BYTES`, as the page embeds them.

    They are taken in turn from those of the largest spread, the largest V, the newest and the oldest.
    """
    summaries = [s for offset, line in read_lines(run, "rollouts.jsonl") if (s := summarise(offset, line))]
    groups, size = [], 0
    for summary in _in_turn(summaries):
        group = shrink(read_line_at(run, "rollouts.jsonl", summary.offset), summary)
        bytes_needed = len(json.dumps(group))
        if size + bytes_needed > MOST_BYTES:
            continue
        groups.append(group)
        size += bytes_needed
        if len(groups) == MOST_GROUPS:
            break
    if summaries and not groups:
        run.gaps.append("rollouts.jsonl has no group small enough to be shown here.")
    return sorted(groups, key=lambda g: (-g["mixed"], -g["spread"]))


def summarise(offset: int, line: dict[str, Any]) -> Summary | None:
    """None for a line that holds no group with tokens."""
    responses = _responses(line)
    if not responses or not is_number(line.get("step")):
        return None
    shown = "utility" if any("utility" in r for r in responses) else "advantage_final"
    scores = np.array([n for r in responses for n in _token_numbers(r, shown)])
    spread = float(np.subtract(*np.quantile(scores, [0.95, 0.05]))) if len(scores) else 0.0
    anchor = line.get("anchor")
    judged = [*responses, anchor] if isinstance(anchor, dict) else responses
    dependency = max((y["dependency"] for y in judged if is_number(y.get("dependency"))), default=-1.0)
    outcomes = {bool(r.get("correct")) for r in responses}
    return Summary(
        offset, line["step"], str(line.get("prompt_id", "")), len(outcomes) == 2, spread, dependency
    )


def shrink(line: dict[str, Any], summary: Summary) -> dict[str, Any]:
    """A group as the page embeds it: few responses of each outcome, four digits a number, safe images."""
    responses = _responses(line)
    correct = [r for r in responses if r.get("correct")]
    wrong = [r for r in responses if not r.get("correct")]
    anchor = line.get("anchor")
    return {
        "step": summary.step,
        "id": summary.prompt_id,
        "task": str(line.get("task") or ""),
        "question": str(line.get("question", "")).replace("<image>", "").strip(),
        "answer": str(line.get("answer", "")),
        "images": _images(line.get("images")),
        "corrupted": _images(line.get("corrupted_images")),
        "replayed": bool(line.get("replayed")),
        "anchor": _anchor(anchor) if isinstance(anchor, dict) else None,
        "numCorrect": len(correct),
        "numResponses": len(responses),
        "mixed": summary.mixed,
        "spread": _short(summary.spread),
        "dependency": _short(summary.dependency),
        "responses": [_response(r) for side in (correct, wrong) for r in _most_telling(side)],
    }


def _in_turn(summaries: list[Summary]) -> Iterator[Summary]:
    most = 4 * MOST_GROUPS
    rankings = (
        heapq.nlargest(most, summaries, key=lambda s: (s.mixed, s.spread)),
        heapq.nlargest(most, summaries, key=lambda s: (s.mixed, s.dependency)),
        heapq.nlargest(most, summaries, key=lambda s: (s.step, s.mixed)),
        heapq.nsmallest(most, summaries, key=lambda s: (s.step, not s.mixed)),
    )
    seen: set[int] = set()
    of_prompt: Counter[str] = Counter()
    for summary in chain.from_iterable(zip_longest(*rankings)):
        if summary is None or summary.offset in seen or of_prompt[summary.prompt_id] == MOST_A_PROMPT:
            continue
        seen.add(summary.offset)
        of_prompt[summary.prompt_id] += 1
        yield summary


def _responses(line: dict[str, Any]) -> list[dict[str, Any]]:
    listed = line.get("responses")
    candidates = listed if isinstance(listed, list) else []
    return [
        r for r in candidates if isinstance(r, dict) and isinstance(r.get("tokens"), list) and r["tokens"]
    ]


def _most_telling(responses: list[dict[str, Any]]) -> list[dict[str, Any]]:
    def spread(response: dict[str, Any]) -> float:
        scores = _token_numbers(response, "utility")
        return float(np.std(scores)) if scores else 0.0

    return sorted(responses, key=spread, reverse=True)[:MOST_A_SIDE]


def _response(response: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {
        "tokens": [str(token) for token in response["tokens"]],
        "correct": bool(response.get("correct")),
        "format": bool(response.get("format")),
        "truncated": bool(response.get("truncated")),
        "experience": bool(response.get("experience")),
        "reason": str(response.get("reason") or ""),
        "extracted": None if response.get("extracted") is None else str(response["extracted"]),
    }
    kept |= {
        key: _short(response[key]) for key in ("advantage", "dependency") if is_number(response.get(key))
    }
    for key in PER_TOKEN:
        if numbers := _token_numbers(response, key):
            kept[key] = [_short(number) for number in numbers]
    return kept


def _anchor(anchor: dict[str, Any]) -> dict[str, Any]:
    numbers = {key: _short(value) for key, value in anchor.items() if is_number(value)}
    return numbers | {"text": str(anchor.get("text", ""))}


def _token_numbers(response: dict[str, Any], key: str) -> list[float]:
    """A number a token; empty where the list is absent, has another length or holds anything else."""
    numbers = response.get(key)
    if not isinstance(numbers, list) or len(numbers) != len(response["tokens"]):
        return []
    return numbers if all(map(is_number, numbers)) else []


def _images(listed: Any) -> list[str]:
    """Embedded images alone: a link would make the page reach for the network."""
    candidates = listed if isinstance(listed, list) else []
    return [image for image in candidates if isinstance(image, str) and EMBEDDED_IMAGE.fullmatch(image)]


def _short(value: float) -> float:
    return float(f"{value:.4g}")
