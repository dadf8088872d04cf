"""What a score depends on besides model and set: how it is recorded, and notes where the rows of a table differ."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pivot.config import PromptConfig
from pivot.data import template

if TYPE_CHECKING:
    from pivot.sampling import SampleRequest

Dtype = Literal["float32", "bfloat16"]
Entry = Mapping[str, Any]
"""An entry of scores.json."""
UNKNOWN = "evaluation settings not recorded"


@dataclass(frozen=True)
class EvaluationSettings:
    """How a model is evaluated.

    Example:
        EvaluationSettings(evaluation_request(8, Sampling(max_tokens=2048)), min_pixels=200704, max_pixels=1003520)
    """

    request: SampleRequest
    grader: str = "pivot"
    engine: str = "native"
    """What sampled: `native`, `vllm`, or an engine that has samplers of its own (`verl`)."""
    dtype: Dtype = "float32"
    min_pixels: int | None = None
    """Smallest image area after resizing; None: the limit in the model's files."""
    max_pixels: int | None = None
    """Largest image area after resizing; None: the limit in the model's files."""
    prompt: PromptConfig = field(default_factory=PromptConfig)
    """How questions are asked, and where responses answer."""


def recorded(settings: EvaluationSettings) -> dict[str, Any]:
    """The `settings` of an entry; scores are comparable if all of them but the seed are equal."""
    request = settings.request
    return {
        "blank": request.blank,
        "samples": request.num_samples,
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "top_k": request.sampling.top_k,
        "max_tokens": request.sampling.max_tokens,
        "seed": request.key[0],
        "grader": settings.grader,
        "engine": settings.engine,
        "dtype": settings.dtype,
        "min_pixels": settings.min_pixels,
        "max_pixels": settings.max_pixels,
        "template": _digest(settings.prompt),
    }


def _digest(prompt: PromptConfig) -> str:
    """Identifies a prompt; the paper's has the digest that it had before there were others."""
    parts = [template.SYSTEM, template.INSTRUCTION]
    if prompt != PromptConfig():
        parts = [repr(prompt.system), prompt.template or template.TEMPLATE, prompt.answer]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def comparability_notes(rows: Sequence[Mapping[str, Sequence[Entry]]]) -> list[str]:
    """One note per row of a table, empty if the row was measured as most rows were; else what differs.

    A row maps each set to the entries behind its number, one per seed. Sets are compared one by one. Without a
    majority every row gets a note. Entries without settings, as older versions wrote them, are reported as unknown if
    the settings of other rows are known.

    Example:
        comparability_notes([{"geometry3k": [base]}, {"geometry3k": [dapo]}, {"geometry3k": [pivot]}])
        ["image limits 3136 to 12845056 pixels (others 200704 to 1003520 pixels)", "", ""]
    """
    found: list[dict[str, list[str]]] = [{} for _ in rows]
    for column in dict.fromkeys(name for row in rows for name in row):
        measured = {i: row[column] for i, row in enumerate(rows) if row.get(column)}
        for label, value_of in ASPECTS.items():
            values = {i: frozenset(map(value_of, entries)) for i, entries in measured.items()}
            for i, text in _differing(label, values):
                columns = found[i].setdefault(text, [])
                columns += [column] * (column not in columns)
    return ["; ".join(_phrases(texts, row)) for texts, row in zip(found, rows, strict=True)]


def _differing(label: str, values: dict[int, frozenset[str | None]]) -> list[tuple[int, str]]:
    """(row, text) of the rows that differ from most of the known ones."""
    distinct = set(values.values())
    if len(distinct) <= 1 and all(len(value) == 1 for value in distinct):
        return []
    known = Counter(value for value in values.values() if None not in value)
    usual = next((v for v, n in known.items() if len(v) == 1 and 2 * n > known.total()), None)
    texts = []
    for i, value in values.items():
        if None in value:
            texts.append((i, UNKNOWN))
        elif value != usual:
            others = {text for other in known if other != value for text in other}
            beside = f" (others {_join(others)})" if others else ""
            texts.append((i, f"{label} {_join(value)}{beside}"))
    return texts


def _phrases(texts: dict[str, list[str]], row: Mapping[str, Sequence[Entry]]) -> list[str]:
    """The texts, each with its sets unless it holds for all sets of the row."""
    num_columns = sum(bool(entries) for entries in row.values())
    return [
        text if len(columns) == num_columns else f"{text} on {', '.join(columns)}"
        for text, columns in texts.items()
    ]


def _join(values: Iterable[Any]) -> str:
    return " and ".join(sorted(values))


def _settings(entry: Entry) -> Mapping[str, Any]:
    settings = entry.get("settings")
    return settings if isinstance(settings, Mapping) else {}


def _setting(name: str) -> Callable[[Entry], str | None]:
    def value(entry: Entry) -> str | None:
        found = _settings(entry).get(name)
        return None if found is None else str(found)

    return value


def _sampler(entry: Entry) -> str | None:
    found = _setting("engine")(entry)
    return "native" if found == "embedded" else found  # its name in older versions


def _count(name: str) -> Callable[[Entry], str | None]:
    """Counts are in the entry itself, even in old ones."""
    return lambda entry: None if entry.get(name) is None else str(entry[name])


def _limits(entry: Entry) -> str | None:
    settings = _settings(entry)
    if "min_pixels" not in settings:
        return None
    low, high = settings["min_pixels"], settings.get("max_pixels")
    if low is None and high is None:
        return "of the model's files"
    return f"{'?' if low is None else low} to {'?' if high is None else high} pixels"


ASPECTS: dict[str, Callable[[Entry], str | None]] = {
    "image limits": _limits,
    "grader": _setting("grader"),
    "template": _setting("template"),
    "samples": _count("samples"),
    "prompts": _count("prompts"),
    "response limit": _setting("max_tokens"),
    "temperature": _setting("temperature"),
    "top_p": _setting("top_p"),
    "top_k": _setting("top_k"),
    "dtype": _setting("dtype"),
    "sampler": _sampler,
}
"""What must be equal in all rows -> its text in an entry; None: not recorded."""
