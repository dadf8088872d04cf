"""The paper's token figure as a file: image and question on the left, the coloured responses on the right."""

from __future__ import annotations

import base64
import io
import textwrap
from collections.abc import Iterator
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

from pivot.report.figures import STYLE, save

WARM = LinearSegmentedColormap.from_list("utility", ["#76aee6", "#ffffff", "#f28a3a"])
"""Blue, white, orange: the two ends differ for every kind of colour vision, and black text reads on both."""
NUM_FIGURES = 3
LINE_LENGTH = 92
MOST_LINES = 26
TITLE_LENGTH = 60
"""Letters: a response that lost its form can have all of itself for an answer."""
WIDTH = 10.0
TEXT_WIDTH = 6.0
LINE_HEIGHT = 0.165
"""Inches, as the widths."""
FONT = "DejaVu Sans Mono"
"""Comes with matplotlib; each of its letters is 0.60205 em wide."""
FONT_SIZE = TEXT_WIDTH / LINE_LENGTH * 72 / 0.60205


def save_token_figures(groups: list[dict[str, Any]], folder: Path) -> list[Path]:
    """`tokens-1`, `tokens-2`, ... of the first groups that have utilities, as SVG and PDF."""
    scored = [g for g in groups if any("utility" in r for r in g["responses"])]
    paths = []
    with matplotlib.rc_context({**STYLE, "text.parse_math": False}):
        for i, group in enumerate(scored[:NUM_FIGURES], start=1):
            paths += save(token_figure(group), folder / f"tokens-{i}")
    return paths


def token_figure(group: dict[str, Any]) -> Figure:
    """One correct and one wrong response of a group where it has both, coloured by U."""
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
    """Tokens broken into lines of at most LINE_LENGTH columns: (token's index, column, its text there)."""
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
    """The pixels of an embedded image; a white one where it is damaged."""
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
    """At most `length` letters, the last of them dots where some are missing."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)
