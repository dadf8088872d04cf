"""Token scores of rollout groups: the groups that the page embeds, and the paper's token figure as a file.

The interactive token map is `tokens.js`; the figure shows the image and question on the left, the responses on the
right.
"""

from __future__ import annotations

import base64
import heapq
import io
import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.patches import Rectangle

from pivot.data.template import IMAGE_MARK
from pivot.report.figures import STYLE, save
from pivot.report.run import RunData, is_number, read_row_at, read_rows

MOST_GROUPS = 24
MOST_BYTES = 3_000_000
MOST_PER_PROMPT = 2
MOST_PER_SIDE = 3
"""Correct responses shown per group, and as many wrong ones."""
PER_TOKEN = ("logprobs", "entropy", "support", "future", "gate", "utility", "advantage_final")
EMBEDDED_IMAGE = re.compile(r"data:image/(png|jpeg|webp|gif);base64,[A-Za-z0-9+/=]+")
WARM = LinearSegmentedColormap.from_list("utility", ["#76aee6", "#ffffff", "#f28a3a"])
"""Blue, white, orange: distinguishable with every kind of colour vision, and readable under black text."""
NUM_FIGURES = 3
LINE_LENGTH = 92
MOST_LINES = 26
TITLE_LENGTH = 60
"""Characters; the extracted answer of a malformed response can be the whole response."""
WIDTH = 10.0
TEXT_WIDTH = 6.0
LINE_HEIGHT = 0.165
"""Inches, like the widths."""
FONT = "DejaVu Sans Mono"
"""Comes with matplotlib; every character is 0.60205 em wide."""
FONT_SIZE = TEXT_WIDTH / LINE_LENGTH * 72 / 0.60205


@dataclass(frozen=True)
class GroupSummary:
    """How interesting a group is, and where it is in the file."""

    offset: int
    step: float
    prompt_id: str
    mixed: bool
    """It has correct and wrong responses."""
    spread: float
    """95% minus 5% quantile of U over the group's tokens; of the final advantage for methods without U."""
    dependency: float
    """The largest V(y) of its responses and its anchor; -1 if none was computed."""


def select_groups(run: RunData) -> list[dict[str, Any]]:
    """At most `MOST_GROUPS` groups within `MOST_BYTES`, as the page embeds them.

    They are taken in turn from the groups with the largest spread, the largest V, the newest and the oldest.
    """
    summaries = [s for offset, row in read_rows(run, "rollouts.jsonl") if (s := summarise_group(offset, row))]
    groups, size = [], 0
    for summary in _in_turn(summaries):
        group = shrink(read_row_at(run, "rollouts.jsonl", summary.offset), summary)
        bytes_needed = len(json.dumps(group))
        if size + bytes_needed > MOST_BYTES:
            continue
        groups.append(group)
        size += bytes_needed
        if len(groups) == MOST_GROUPS:
            break
    if summaries and not groups:
        run.gaps.append("rollouts.jsonl has no group that is small enough for this page.")
    return sorted(groups, key=lambda g: (-g["mixed"], -g["spread"]))


def summarise_group(offset: int, row: dict[str, Any]) -> GroupSummary | None:
    """None for a row without tokens."""
    responses = _responses(row)
    if not responses or not is_number(row.get("step")):
        return None
    shown = "utility" if any("utility" in r for r in responses) else "advantage_final"
    scores = np.array([n for r in responses for n in _token_numbers(r, shown)])
    spread = float(np.subtract(*np.quantile(scores, [0.95, 0.05]))) if len(scores) else 0.0
    anchor = row.get("anchor")
    scored = [*responses, anchor] if isinstance(anchor, dict) else responses
    dependency = max((y["dependency"] for y in scored if is_number(y.get("dependency"))), default=-1.0)
    outcomes = {bool(r.get("correct")) for r in responses}
    return GroupSummary(
        offset, row["step"], str(row.get("prompt_id", "")), len(outcomes) == 2, spread, dependency
    )


def shrink(row: dict[str, Any], summary: GroupSummary) -> dict[str, Any]:
    """A group as the page embeds it: few responses per outcome, four digits per number, embedded images only."""
    responses = _responses(row)
    correct = [r for r in responses if r.get("correct")]
    wrong = [r for r in responses if not r.get("correct")]
    anchor = row.get("anchor")
    return {
        "step": summary.step,
        "id": summary.prompt_id,
        "task": str(row.get("task") or ""),
        "question": with_marks(str(row.get("question", ""))),
        "answer": str(row.get("answer", "")),
        "images": _images(row.get("images")),
        "corrupted": _images(row.get("corrupted_images")),
        "replayed": bool(row.get("replayed")),
        "anchor": _anchor(anchor) if isinstance(anchor, dict) else None,
        "numCorrect": len(correct),
        "numResponses": len(responses),
        "mixed": summary.mixed,
        "spread": _short(summary.spread),
        "dependency": _short(summary.dependency),
        "responses": [_response(r) for side in (correct, wrong) for r in _widest_spread(side)],
    }


def _in_turn(summaries: list[GroupSummary]) -> Iterator[GroupSummary]:
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
        if summary is None or summary.offset in seen or of_prompt[summary.prompt_id] == MOST_PER_PROMPT:
            continue
        seen.add(summary.offset)
        of_prompt[summary.prompt_id] += 1
        yield summary


def _responses(row: dict[str, Any]) -> list[dict[str, Any]]:
    listed = row.get("responses")
    candidates = listed if isinstance(listed, list) else []
    return [
        r for r in candidates if isinstance(r, dict) and isinstance(r.get("tokens"), list) and r["tokens"]
    ]


def _widest_spread(responses: list[dict[str, Any]]) -> list[dict[str, Any]]:
    def spread(response: dict[str, Any]) -> float:
        scores = _token_numbers(response, "utility")
        return float(np.std(scores)) if scores else 0.0

    return sorted(responses, key=spread, reverse=True)[:MOST_PER_SIDE]


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
    """One number per token; empty if the list is missing, has another length or holds anything else."""
    numbers = response.get(key)
    if not isinstance(numbers, list) or len(numbers) != len(response["tokens"]):
        return []
    return numbers if all(map(is_number, numbers)) else []


def _images(listed: Any) -> list[str]:
    """Embedded images only: a link would make the page fetch it."""
    candidates = listed if isinstance(listed, list) else []
    return [image for image in candidates if isinstance(image, str) and EMBEDDED_IMAGE.fullmatch(image)]


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def with_marks(question: str) -> str:
    """The question with its image marks in readable form, numbered if there are several."""
    first, *parts = question.split(IMAGE_MARK)
    for number, part in enumerate(parts, start=1):
        mark = f"[image {number}]" if len(parts) > 1 else "[image]"
        first += f"{mark} {part}" if part[:1].isalnum() else mark + part
    return first.strip()


def save_token_figures(groups: list[dict[str, Any]], folder: Path) -> list[Path]:
    """`tokens-1`, `tokens-2`, ... of the first groups with utilities, as SVG and PDF."""
    scored = [g for g in groups if any("utility" in r for r in g["responses"])]
    paths = []
    with matplotlib.rc_context({**STYLE, "text.parse_math": False}):
        for i, group in enumerate(scored[:NUM_FIGURES], start=1):
            paths += save(token_figure(group), folder / f"tokens-{i}")
    return paths


def token_figure(group: dict[str, Any]) -> Figure:
    """One correct and one wrong response of a group, if it has both, coloured by U."""
    shown = _one_of_each([r for r in group["responses"] if "utility" in r])
    lines = [list(_lines(response["tokens"]))[:MOST_LINES] for response in shown]
    height = max(2.2, sum(LINE_HEIGHT * (len(block) + 2) for block in lines))
    figure = Figure(figsize=(WIDTH, height + 0.5))
    scores = np.abs(np.concatenate([response["utility"] for response in shown]))
    limit = float(np.quantile(scores, 0.97)) or float(scores.max()) or 1.0
    _left(figure, group)
    axes = figure.add_axes((0.33, 0.0, TEXT_WIDTH / WIDTH, 1.0))
    _blank(axes, (0, LINE_LENGTH), (height + 0.5, 0))
    y = 0.25
    for response, block in zip(shown, lines, strict=True):
        outcome = "Correct" if response["correct"] else "Wrong"
        title = _shortened(
            f"{outcome} response, answer {_printable(response['extracted'] or 'none')}", TITLE_LENGTH
        )
        axes.text(0, y, title, fontsize=9, fontweight="bold", va="center")
        y = _write(axes, response, block, y + LINE_HEIGHT * 1.3, limit) + LINE_HEIGHT
    bar = figure.add_axes((0.945, 0.25, 0.01, 0.5))
    figure.colorbar(ScalarMappable(Normalize(-limit, limit), WARM), cax=bar, label="utility U")
    return figure


def _write(
    axes: Axes, response: dict[str, Any], lines: list[list[tuple[int, int, str]]], y: float, limit: float
) -> float:
    for line in lines:
        for index, column, text in line:
            strength = 0.5 + 0.5 * np.clip(response["utility"][index] / limit, -1, 1)
            place = (column, y - LINE_HEIGHT / 2)
            axes.add_patch(Rectangle(place, len(text), LINE_HEIGHT, facecolor=WARM(strength), linewidth=0))
        whole = "".join(text for _, _, text in line)
        axes.text(0, y, whole, fontsize=FONT_SIZE, family=FONT, va="center")
        y += LINE_HEIGHT
    return y


def _lines(tokens: list[str]) -> Iterator[list[tuple[int, int, str]]]:
    """Tokens broken into lines of at most LINE_LENGTH columns: (index of the token, column, text)."""
    line: list[tuple[int, int, str]] = []
    column = 0
    for index, token in enumerate(tokens):
        for part, piece in enumerate(token.split("\n")):
            text = _printable(piece)
            if part or column + len(text) > LINE_LENGTH:
                yield line
                line, column = [], 0
                text = text.lstrip()
            for start in range(0, len(text), LINE_LENGTH):
                cut = text[start : start + LINE_LENGTH]
                if start:
                    yield line
                    line, column = [], 0
                line.append((index, column, cut))
                column += len(cut)
    yield line


def _left(figure: Figure, group: dict[str, Any]) -> None:
    pairs = [("image", group["images"][:1]), ("corrupted", group["corrupted"][:1])]
    for i, (title, images) in enumerate(pairs):
        if images:
            axes = figure.add_axes((0.01 + 0.155 * i, 0.45, 0.145, 0.48))
            axes.imshow(decode(images[0]))
            axes.set_title(title, fontsize=8, fontweight="normal")
            axes.set_axis_off()
    question = textwrap.fill(_printable(group["question"]), 46, max_lines=9)
    text = f"{question}\n\nAnswer: {_printable(group['answer'])}"
    figure.text(0.012, 0.4, text, fontsize=8, va="top")


def decode(image: str) -> np.ndarray:
    """The pixels of an embedded image; a white image if it is damaged."""
    kind = image.removeprefix("data:image/").split(";")[0]
    try:
        return imread(io.BytesIO(base64.b64decode(image.split(",", 1)[1])), format=kind)
    except (OSError, ValueError, SyntaxError):
        return np.ones((2, 2, 3))


def _one_of_each(responses: list[dict[str, Any]]) -> list[dict[str, Any]]:
    correct = [r for r in responses if r["correct"]][:1]
    wrong = [r for r in responses if not r["correct"]][:1]
    return correct + wrong


def _blank(axes: Axes, x: tuple[float, float], y: tuple[float, float]) -> None:
    axes.set_xlim(*x)
    axes.set_ylim(*y)
    axes.set_axis_off()


def _shortened(text: str, length: int) -> str:
    """At most `length` characters, ending in an ellipsis if the text was cut."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)
