"""The paper's layer-wise attention figure: attention mass on image tokens, one curve per model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from pivot.durable import disk_errors, write_json
from pivot.evaluation.attention import ImageAttention
from pivot.report.charts import Curve, LineChart
from pivot.report.figures import COLOURS, SOFT, STYLE, add_legend, plot, save

LEVEL = 0.95
SIZE = (5.6, 3.0)
PNG_DPI = 160
NAME = "attention"
MOST_DOTS = 40
"""Layers up to which every one has a dot."""


@dataclass(frozen=True)
class AttentionStudy:
    """The measured models, and the data they were measured on."""

    data: str
    num_samples: int
    models: Sequence[ImageAttention]


def write_attention(study: AttentionStudy, folder: Path) -> list[Path]:
    """`attention.svg`, `.pdf`, `.png` and `.json` in `folder`; the same numbers give the same bytes."""
    numbers = study_numbers(study)
    with matplotlib.rc_context(STYLE), disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        figure = attention_figure(numbers)
        paths = save(figure, folder / NAME)
        picture = folder / f"{NAME}.png"
        figure.savefig(picture, dpi=PNG_DPI, metadata={"Software": None})
    table = folder / f"{NAME}.json"
    write_json(table, numbers)
    return [*paths, picture, table]


def study_numbers(study: AttentionStudy) -> dict[str, Any]:
    """The content of `attention.json`: mean and interval per layer, mean response length, mass per prompt."""
    return {
        "data": study.data,
        "samples": study.num_samples,
        "level": LEVEL,
        "models": [_model_numbers(measured) for measured in study.models],
    }


def _model_numbers(measured: ImageAttention) -> dict[str, Any]:
    low_N, high_N = measured.interval(LEVEL)
    by_prompt = zip(measured.prompt_ids, _rounded(measured.mass_PN), strict=True)
    return {
        "model": measured.model,
        "prompts": len(measured.prompt_ids),
        "image_limits": None if measured.image_limits is None else list(measured.image_limits),
        "response_tokens": round(float(measured.num_tokens_P.mean()), 2),
        "mean": _rounded(measured.mean_N),
        "low": _rounded(low_N),
        "high": _rounded(high_N),
        "by_prompt": dict(by_prompt),
    }


def _rounded(values: np.ndarray) -> list[Any]:
    return np.round(values, 6).tolist()


def _limits_note(model: dict[str, Any], models: list[dict[str, Any]]) -> str:
    """A model's image limits, if the models of a figure do not share them."""
    limits = [other["image_limits"] for other in models]
    if all(other == limits[0] for other in limits):
        return ""
    own = model["image_limits"]
    return " (image limits not recorded)" if own is None else " (images of {} to {} pixels)".format(*own)


def attention_figure(numbers: dict[str, Any]) -> Figure:
    """One curve per model over the layers, with its interval as a band."""
    figure = Figure(figsize=SIZE)
    axes = figure.add_subplot()
    curves = []
    for index, model in enumerate(numbers["models"]):
        layers = np.arange(1.0, len(model["mean"]) + 1)
        label = model["model"] + _limits_note(model, numbers["models"])
        curves.append(Curve(label, layers, np.array(model["mean"]), colour=index))
        colour = COLOURS[index % len(COLOURS)]
        axes.fill_between(layers, model["low"], model["high"], color=colour, alpha=0.16, linewidth=0)
    dots = max(len(curve.steps) for curve in curves) <= MOST_DOTS
    title = "Attention of response tokens to image tokens"
    chart = LineChart(
        NAME, title, "", tuple(curves), x_label="layer", percent=True, from_zero=True, dots=dots
    )
    plot(chart, axes)
    axes.set_title(title)
    axes.set_ylabel("attention mass")
    axes.set_ylim(0, 1.06 * max(max(model["high"]) for model in numbers["models"]) or 1.0)
    add_legend(chart, axes)
    most = max(model["prompts"] for model in numbers["models"])
    note = f"{numbers['data']}, {most} prompts, bands: {numbers['level']:.0%} bootstrap over prompts"
    figure.text(0.5, -0.05, note, ha="center", va="top", fontsize=7, color=SOFT)
    return figure
