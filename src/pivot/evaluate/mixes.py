"""Whether the scores of one table compare: a note for each row that was measured otherwise than the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Entry = Mapping[str, Any]
"""An entry of scores.json."""
Row = Mapping[str, Sequence[Entry]]
"""Set -> the entries behind a row's number, one per seed."""

UNKNOWN = "evaluation settings not recorded"


def mix_notes(rows: Sequence[Row]) -> list[str]:
    """One note per row, empty where it was measured as most rows were; without a majority each row says its own.

    Rows are compared set by set. Entries without settings, as older versions wrote them, are said to be unknown where
    others are known.

    Example:
        mix_notes([{"geometry3k": [base]}, {"geometry3k": [dapo]}, {"geometry3k": [pivot]}])
        ["image limits 3136 to 12845056 pixels (others 200704 to 1003520 pixels)", "", ""]
    """
    found: list[dict[str, list[str]]] = [{} for _ in rows]
    for column in dict.fromkeys(name for row in rows for name in row):
        measured = {i: row[column] for i, row in enumerate(rows) if row.get(column)}
        for label, value_of in ASPECTS.items():
            for i, text in _differing(label, {i: _values(e, value_of) for i, e in measured.items()}):
                columns = found[i].setdefault(text, [])
                columns += [column] * (column not in columns)
    return ["; ".join(_phrases(texts, row)) for texts, row in zip(found, rows, strict=True)]


def _differing(label: str, values: dict[int, frozenset[str | None]]) -> list[tuple[int, str]]:
    """(row, text) of the rows that are not as most of the known ones."""
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


def _phrases(texts: dict[str, list[str]], row: Row) -> list[str]:
    """The texts, each with its sets where it does not hold for all of the row's."""
    num_columns = sum(bool(entries) for entries in row.values())
    return [
        text if len(columns) == num_columns else f"{text} on {', '.join(columns)}"
        for text, columns in texts.items()
    ]


def _values(entries: Sequence[Entry], value_of: Callable[[Entry], str | None]) -> frozenset[str | None]:
    return frozenset(value_of(entry) for entry in entries)


def _join(values: Any) -> str:
    return " and ".join(sorted(values))


def _setting(name: str) -> Callable[[Entry], str | None]:
    def value(entry: Entry) -> str | None:
        found = _settings(entry).get(name)
        return None if found is None else str(found)

    return value


def _limits(entry: Entry) -> str | None:
    settings = _settings(entry)
    if "min_pixels" not in settings:
        return None
    low, high = settings["min_pixels"], settings.get("max_pixels")
    if low is None and high is None:
        return "of the model's files"
    return f"{'?' if low is None else low} to {'?' if high is None else high} pixels"


def _count(name: str) -> Callable[[Entry], str | None]:
    """Counts stand in the entry itself, also in old ones."""
    return lambda entry: None if entry.get(name) is None else str(entry[name])


def _settings(entry: Entry) -> Mapping[str, Any]:
    settings = entry.get("settings")
    return settings if isinstance(settings, Mapping) else {}


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
    "engine": _setting("engine"),
}
"""What must be equal in all rows, and how an entry says it; None: not recorded."""
