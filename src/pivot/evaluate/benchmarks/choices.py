"""Options of multiple-choice questions: written out, read back, and the letter that a text means."""

from __future__ import annotations

import re

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LINE_LABEL = re.compile(r"^[ \t]*\(?([A-Z])[).:．、][ \t]*", re.MULTILINE)
_INLINE_LABEL = re.compile(r"\(([A-Z])\)\s*")
_LABELLED = re.compile(r"^\(?([A-Z])(?:[).:．、]+\s*(.*)|)$", re.DOTALL)


def lettered(options: list[str]) -> str:
    """One option a line: `A. first`."""
    return "\n".join(f"{LETTERS[i]}. {option.strip()}" for i, option in enumerate(options))


def options_in(text: str) -> list[str]:
    """The texts of the options A, B, C, ... that stand in a question; empty where there are none."""
    for pattern in (_LINE_LABEL, _INLINE_LABEL):
        labels = list(pattern.finditer(text))
        start = max((i for i, label in enumerate(labels) if label[1] == "A"), default=None)
        if start is None:
            continue
        run = labels[start:]
        run = run[: next((i for i, label in enumerate(run) if label[1] != LETTERS[i]), len(run))]
        if len(run) > 1:
            ends = [label.start() for label in run[1:]] + [len(text)]
            bodies = [text[label.end() : end] for label, end in zip(run, ends, strict=True)]
            if pattern is _LINE_LABEL:
                bodies = [body.split("\n")[0] for body in bodies]
            return [body.strip(" \t\r\n,;") for body in bodies]
    return []


def letter_of(text: str, options: list[str]) -> str | None:
    """The option that an answer names: `B`, `(B)`, `B. forty`, or the text of exactly one option."""
    text = without_latex_text(text).strip()
    labelled = _LABELLED.match(text.rstrip("."))
    if labelled and (not options or LETTERS.index(labelled[1]) < len(options)):
        return labelled[1]
    same = [i for i, option in enumerate(options) if plain(option) == plain(text) != ""]
    return LETTERS[same[0]] if len(same) == 1 else None


def letters_in(text: str) -> frozenset[str] | None:
    """Several letters in any order, with any separator (`A, C`, `AC`, `C and A`); None if there is more."""
    cleaned = re.sub(r"\band\b|[\s,;&.()\[\]{}、，]", "", without_latex_text(text))
    return frozenset(cleaned) if re.fullmatch(r"[A-Z]+", cleaned) else None


def without_latex_text(text: str) -> str:
    """`\\text{B}` -> `B`, for the usual text commands."""
    return re.sub(r"\\(?:text|textbf|mathrm|mathbf|textrm|mbox)\s*\{([^{}]*)\}", r"\1", text)


def plain(text: str) -> str:
    """Without case, spaces, quotes, dollar and per cent signs, thousands separators and a last full stop."""
    text = without_latex_text(text).casefold().replace("\\", "")
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    text = re.sub(r"[\s\"'$%{}]+", " ", text).strip()
    return text.removesuffix(".").strip()
