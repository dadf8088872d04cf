"""We-Math testmini: 1,740 rows, 525 problems with their steps, scored by its four-dimensional metric."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from pivot.data import BadRow, Draft, Layout, RowReader
from pivot.errors import UserError
from pivot.evaluation.benchmarks.benchmark import Benchmark, letter_key
from pivot.evaluation.matching import LETTER, LETTERS, lettered
from pivot.evaluation.scoring import Graded, need_columns

_NEXT_OPTION = re.compile(r"\s*[;；]?\s*(?=\b[A-H][.．、])")
_LABEL = re.compile(r"^([A-H])[.．、]\s*")
_STEPS = {"2steps_multi": "two-step", "3steps_multi": "three-step"}
_HALF_POINT = 0.5
"""What the score gives if all steps are right but the composite question is wrong."""


def draft(row: RowReader) -> Draft:
    options = split_options(row.text("option"))
    return Draft(
        question=f"{row.text('question').strip()}\n{lettered(options)}",
        answer=letter_key(row, options),
        images=[row["image_path"]],
        task=_STEPS.get(row.text("key"), "one-step"),
        columns={"matching": LETTER, "choices": options},
    )


def split_options(option: str) -> list[str]:
    """`A. 3, 5  ;B. 4, 5; C. ...` -> the texts; the letters must be A, B, C, ..."""
    parts = [part.strip() for part in _NEXT_OPTION.split(option.strip()) if part.strip()]
    texts: list[str] = []
    for part in parts:
        label = _LABEL.match(part)
        if label and label[1] == LETTERS[len(texts)]:
            texts.append(part[label.end() :].rstrip(" ;；"))
        elif texts:
            texts[-1] = f"{texts[-1]} {part}"
    if len(texts) < 2:
        raise BadRow(f"option is not a list of lettered options ({option[:40]!r})")
    return texts


def metrics(graded: Sequence[Graded]) -> dict[str, float]:
    """We-Math's four-dimensional metric, mean over the k samples.

    By its steps and the composite question (`..._multi`), a problem is one of
        IK insufficient knowledge       a step wrong, composite wrong
        IG inadequate generalisation    all steps right, composite wrong
        CM complete mastery             steps right, composite right
        RM rote memorisation            steps wrong, composite right
    CM needs all steps right (strict) or at least one (loose); RM is the rest. IK, IG and CM are shares of all
    problems, RM is a share of CM + RM; score = (CM + IG/2) / problems. Problems with missing rows are not
    scored; `incomplete` counts them.
    """
    need_columns(graded, ("ID", "key"))
    problems: dict[str, dict[str, tuple[bool, ...]]] = defaultdict(dict)
    for prompt in graded:
        problems[str(prompt.columns["ID"])][str(prompt.columns["key"])] = prompt.correct
    complete = {name: rows for name, rows in problems.items() if _is_complete(rows)}
    if not complete:
        raise UserError(
            "We-Math's metric needs all rows of a problem, and no problem is complete: evaluate the full set."
        )
    samples = [_four_dimensions(complete.values(), i) for i in range(min(len(g.correct) for g in graded))]
    scores = {name: float(np.mean([sample[name] for sample in samples])) for name in samples[0]}
    return {**scores, "problems": len(complete), "incomplete": len(problems) - len(complete)}


def _is_complete(rows: Mapping[str, tuple[bool, ...]]) -> bool:
    steps = 2 if any(key.startswith("2steps") for key in rows) else 3
    return set(rows) == {f"{steps}steps_{i + 1}" for i in range(steps)} | {f"{steps}steps_multi"}


def _four_dimensions(problems: Iterable[Mapping[str, tuple[bool, ...]]], sample: int) -> dict[str, float]:
    counts: dict[str, int] = dict.fromkeys(("IK", "IG", "CM_strict", "CM_loose", "RM_strict", "RM_loose"), 0)
    total = 0
    for rows in problems:
        total += 1
        multi = next(correct[sample] for key, correct in rows.items() if key.endswith("_multi"))
        steps = [correct[sample] for key, correct in rows.items() if not key.endswith("_multi")]
        if multi:
            counts["CM_strict" if all(steps) else "RM_strict"] += 1
            counts["CM_loose" if any(steps) else "RM_loose"] += 1
        else:
            counts["IG" if all(steps) else "IK"] += 1
    scores = {name: counts[name] / total for name in ("IK", "IG")}
    for kind in ("strict", "loose"):
        mastered, memorised = counts[f"CM_{kind}"], counts[f"RM_{kind}"]
        scores[f"CM_{kind}"] = mastered / total
        scores[f"RM_{kind}"] = memorised / (mastered + memorised) if mastered + memorised else 0.0
        scores[f"score_{kind}"] = (mastered + _HALF_POINT * counts["IG"]) / total
    return scores


BENCHMARK = Benchmark(
    name="we-math",
    heading="WeMath",
    hub_id="We-Math/We-Math",
    split="testmini",
    layouts=(
        Layout(("ID", "key", "question", "option", "answer", "image_path"), draft, id_columns=("ID", "key")),
    ),
    expected={"testmini": 1740},
    matching="letter (with or without text)",
    metrics=metrics,
    papo_split="We_Math",
    papo_rows=1740,
    known_from="the project's testmini.json (We-Math/We-Math); 525 problems from its evaluation script",
    tested_on="24 real rows with images: 4 two-step and 3 three-step problems, all rows of each",
)
