"""The paper's layer-wise attention figure: mass on image tokens over layers, one line a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from pivot.durable import disk_errors, write_json
from pivot.evaluate.attention import ImageAttention
from pivot.report.figures import COLOURS, STYLE, save

LEVEL = 0.95
SIZE = (5.6, 3.0)
PNG_DPI = 160
NAME = "attention"


@dataclass(frozen=True)
class AttentionStudy:
    """What was measured, and on what."""

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
    """The content of `attention.json`: means and intervals a layer, mean response length, each prompt's mass."""
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
    """A model's image limits, where the models of a figure have not the same ones."""
    limits = [other["image_limits"] for other in models]
    if all(other == limits[0] for other in limits):
        return ""
    own = model["image_limits"]
    return " (image limits not recorded)" if own is None else " (images of {} to {} pixels)".format(*own)


def attention_figure(numbers: dict[str, Any]) -> Figure:
    """A line a model over the layers, with its band."""
    figure = Figure(figsize=SIZE)
    axes = figure.add_subplot()
    axes.set_title("Attention of response tokens to image tokens")
    for index, model in enumerate(numbers["models"]):
        colour = COLOURS[index % len(COLOURS)]
        layers = np.arange(1, len(model["mean"]) + 1)
        axes.fill_between(layers, model["low"], model["high"], color=colour, alpha=0.16, linewidth=0)
        dot = "o" if len(layers) <= 40 else None
        look = {"color": colour, "linewidth": 1.7, "marker": dot, "markersize": 3.5}
        axes.plot(
            layers, model["mean"], label=model["model"] + _limits_note(model, numbers["models"]), **look
        )
    axes.set_xlabel("layer")
    axes.set_ylabel("attention mass")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(14, integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    most = max(model["prompts"] for model in numbers["models"])
    what = f"{numbers['data']}, {most} prompts, bands: {numbers['level']:.0%} bootstrap over prompts"
    figure.text(0.5, -0.05, what, ha="center", va="top", fontsize=7, color="#64707d")
    axes.legend()
    return figure
