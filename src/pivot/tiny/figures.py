"""Sampled accuracy of a checkpoint per task: in and out of domain, with blank and with masked images.

The caller passes the sampling function, because `tiny` may not import `sampling`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pivot.rewards.verifier import Reason, check_answer, follows_template, last_box
from pivot.tiny import procedural
from pivot.types import Prompt

View = Literal["clean", "blank", "masked"]

Sample = Callable[[Sequence[Prompt], View], list[list[str]]]
"""Responses per prompt: with its image, with a white image, or with each patch black with probability 0.6."""


@dataclass(frozen=True)
class Condition:
    """One column of the table."""

    name: str
    split: str
    view: View


CONDITIONS = (
    Condition("train", "train", "clean"),
    Condition("test", "test", "clean"),
    Condition("ood", "ood", "clean"),
    Condition("blank", "test", "blank"),
    Condition("masked", "test", "masked"),
)

DEFAULT_PROMPTS, DEFAULT_SAMPLES = 300, 8


def measure(
    sample: Sample, num_prompts: int = DEFAULT_PROMPTS, conditions: Sequence[Condition] = CONDITIONS
) -> dict[str, Any]:
    """The figures of each condition, over the first prompts of its split.

    Example:
        {"test": {"accuracy": 0.41, "format": 0.99, "mixed": 0.8, "tasks": {"angle": 0.38, ...}}, ...}
    """
    return {condition.name: _figures(sample, condition, num_prompts) for condition in conditions}


def _figures(sample: Sample, condition: Condition, num_prompts: int) -> dict[str, Any]:
    prompts = procedural.dataset(condition.split, num_prompts)
    responses = sample(prompts, condition.view)
    rates = [
        sum(is_correct(text, prompt) for text in texts) / len(texts)
        for prompt, texts in zip(prompts, responses, strict=True)
    ]
    formats = [follows_template(text) for texts in responses for text in texts]
    by_task = {
        task: [rate for rate, prompt in zip(rates, prompts, strict=True) if prompt.task == task]
        for task in procedural.TASKS
    }
    by_level = {
        str(level): [
            rate for rate, prompt in zip(rates, prompts, strict=True) if prompt.columns["level"] == level
        ]
        for level in procedural.LEVELS
    }
    return {
        "prompts": len(prompts),
        "accuracy": _mean(rates),
        "format": _mean(formats),
        "mixed": _mean([0 < rate < 1 for rate in rates]),
        "tasks": {task: _mean(values) for task, values in by_task.items()},
        "levels": {level: _mean(values) for level, values in by_level.items()},
    }


def is_correct(response: str, prompt: Prompt) -> bool:
    """Whether the last box holds the answer."""
    box = last_box(response)
    return box is not None and check_answer(box.content, prompt.answer) is Reason.CORRECT


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 4) if values else 0.0


def markdown(figures: dict[str, Any]) -> str:
    """The table of the docs: one row per task, one column per condition, in per cent."""
    rows = [
        ("", *figures),
        ("---", *("---:" for _ in figures)),
        *(
            (task, *(_percent(column["tasks"][task]) for column in figures.values()))
            for task in procedural.TASKS
        ),
        ("**all**", *(f"**{_percent(column['accuracy'])}**" for column in figures.values())),
        ("prompts with 0 < p < 1", *(_percent(column["mixed"]) for column in figures.values())),
        ("format", *(_percent(column["format"]) for column in figures.values())),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
