"""GPU hours estimated from the step times that the paper prints (App. D.4); nothing was measured here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from pivot.config import Config
from pivot.doctor import find_architecture
from pivot.errors import UserError
from pivot.evaluation.benchmarks import BENCHMARKS
from pivot.evaluation.sets import PROCEDURAL, PROCEDURAL_SIZE
from pivot.method import Method

DAPO_SECONDS, VPPO_SECONDS, PIVOT_SECONDS = 698.8, 830.4, 860.8
"""Seconds per step of Qwen2.5-VL-7B on Geometry3K (App. D.4)."""
ANCHOR_GPUS = 4
"""A100 with 80 GB."""
ANCHOR_MODEL = "Qwen/Qwen2.5-VL-7B-Instruct"
ANCHOR_RESPONSES = 384 * 8
"""Per step: rollout batch times group size (Sec. 5.1)."""

CORRUPTED_SECONDS = VPPO_SECONDS - DAPO_SECONDS
"""Scoring under the corrupted image."""
ANCHORS_SECONDS = PIVOT_SECONDS - VPPO_SECONDS
"""Replay, and scoring anchors."""

ASSUMPTIONS = f"""\
These GPU hours are an estimate; nothing was measured here. They assume:
- the paper's seconds per step of the 7B model on {ANCHOR_GPUS} A100 80 GB with 384 x 8 responses (App. D.4):
  DAPO {DAPO_SECONDS}, VPPO {VPPO_SECONDS}, PIVOT {PIVOT_SECONDS};
- a method that scores under the corrupted image takes {CORRUPTED_SECONDS:.1f} s more than DAPO (VPPO - DAPO), one with
  anchors another {ANCHORS_SECONDS:.1f} s (PIVOT - VPPO); all else, GRPO's reference model too, is as in DAPO;
- time grows in proportion to the model's parameters and to the responses per step;
- GPU hours = steps x seconds per step x {ANCHOR_GPUS} / 3600, whatever the number of GPUs;
- an evaluation draws responses at the pace of a DAPO step, which also trains on them, so it should take less."""


@dataclass(frozen=True)
class Estimate:
    """The time that a run would take."""

    steps: int
    seconds_per_step: float
    """On the paper's GPUs."""

    @property
    def gpu_hours(self) -> float:
        return self.steps * self.seconds_per_step * ANCHOR_GPUS / 3600

    def text(self) -> str:
        formula = f"{self.steps} steps x {self.seconds_per_step:.1f} s x {ANCHOR_GPUS} GPUs / 3600"
        return f"{formula} = {self.gpu_hours:.1f} GPU hours"


def estimate_training(config: Config) -> Estimate | None:
    """None where the model's size is not known."""
    size = relative_size(config.model.path)
    if size is None:
        return None
    responses = config.train.prompts_per_step * config.rollout.responses / ANCHOR_RESPONSES
    return Estimate(config.train.steps, _method_seconds(config.method) * size * responses)


def _method_seconds(method: Method) -> float:
    """Of a step of the paper's 7B runs."""
    corrupted = CORRUPTED_SECONDS if method.needs_corrupted else 0.0
    return DAPO_SECONDS + corrupted + (ANCHORS_SECONDS if method.needs_anchors else 0.0)


def evaluation_hours(config: Config, num_responses: int) -> float | None:
    """GPU hours to draw so many responses; None where the model's size is not known."""
    size = relative_size(config.model.path)
    if size is None:
        return None
    return num_responses / ANCHOR_RESPONSES * DAPO_SECONDS * size * ANCHOR_GPUS / 3600


def count_prompts(benchmarks: Sequence[str], limit: int | None) -> int | None:
    """Rows of all sets; None where a set's size is not known."""
    total = 0
    for name in benchmarks:
        rows = limit or PROCEDURAL_SIZE if name in PROCEDURAL else _rows(name)
        if rows is None:
            return None
        total += rows if limit is None else min(rows, limit)
    return total


def _rows(name: str) -> int | None:
    known = BENCHMARKS.get(name)
    return None if known is None else known.expected.get(known.split)


@cache
def relative_size(model: str) -> float | None:
    """Parameters relative to the model of the paper's step times."""
    try:
        return find_architecture(model).parameters / find_architecture(ANCHOR_MODEL).parameters
    except UserError:
        return None
