"""The description of one benchmark, and the PAPO-Eval bundle, which holds a copy of many of them.

PAPO-Eval is one hub set with all of PAPO's benchmarks as ShareGPT messages with image files. Each split has `messages`
(a user and an assistant turn), `images` (paths such as ./data/images/SPLIT/x.png into a zip file of the repository)
and `id`. The user turn ends with the template's instruction, which is removed here because the template adds it again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pivot.data import BadRow, DataSpec, Draft, Format, Layout, RowReader
from pivot.evaluation.matching import LETTERS, kind_of, options_in
from pivot.evaluation.scoring import Graded

PAPO_EVAL = "PAPO-Galaxy/PAPO_eval"
_ARCHIVES = {"We_Math": "We-Math_We-Math_images.zip", "PAPO_MMK12": "PAPO_MMK12_test_images.zip"}
_INSTRUCTION = re.compile(
    r"\s*You first think through the reasoning process as an internal monologue.*\Z", re.DOTALL
)


@dataclass(frozen=True, kw_only=True)
class Benchmark(Format):
    """A data set with a fixed evaluation split.

    Example:
        Benchmark(name="mathvista", hub_id="AI4Math/MathVista", split="testmini", layouts=(...), ...)
    """

    heading: str
    """Column heading in the paper's tables."""
    metrics: Callable[[Sequence[Graded]], dict[str, float]] | None = None
    """The benchmark's own metrics, reported beside the accuracy."""
    papo_split: str | None = None
    """Its split of the PAPO-Eval bundle, if it is part of it."""
    papo_rows: int | None = None

    def layout(self, columns: tuple[str, ...], spec: DataSpec) -> Layout:
        """Every benchmark also accepts the rows of its PAPO-Eval split."""
        if set(_PAPO_LAYOUT.columns) <= set(columns) and not spec.names_columns:
            return _PAPO_LAYOUT
        return super().layout(columns, spec)

    def from_papo_eval(self) -> Benchmark | None:
        """The same benchmark read from the PAPO-Eval bundle; None if it is not part of it."""
        if self.papo_split is None:
            return None
        archive = _ARCHIVES.get(self.papo_split, f"{self.papo_split}_images.zip")
        return replace(
            self,
            hub_id=PAPO_EVAL,
            config=None,
            split=self.papo_split,
            files=(f"data/{self.papo_split}-*.parquet", archive),
            expected={} if self.papo_rows is None else {self.papo_split: self.papo_rows},
        )


def letter_key(row: RowReader, options: Sequence[str]) -> str:
    """The `answer` column of a multiple-choice row, which must be the letter of one of its options."""
    answer = row.text("answer").strip()
    if len(answer) != 1 or answer not in LETTERS[: len(options)]:
        raise BadRow(f"answer is not a letter of the {len(options)} options ({answer[:20]!r})")
    return answer


def _papo_draft(row: RowReader) -> Draft:
    question = _INSTRUCTION.sub("", _turn(row, "user", "human"))
    answer = _turn(row, "assistant", "gpt").strip()
    if not answer:
        raise BadRow("answer missing")
    return Draft(
        question=question,
        answer=answer,
        images=row.images("images") if row["images"] is not None else [],
        columns={"matching": kind_of(answer), "choices": options_in(question)},
    )


def _turn(row: RowReader, *roles: str) -> str:
    """The text of the first turn with one of these roles, in either ShareGPT spelling."""
    turns = row["messages"]
    for turn in turns if isinstance(turns, list) else []:
        if isinstance(turn, dict) and (turn.get("role") or turn.get("from")) in roles:
            text = turn.get("content", turn.get("value"))
            if isinstance(text, str):
                return text
    raise BadRow(f"messages have no {roles[0]} turn")


_PAPO_LAYOUT = Layout(("messages", "images"), _papo_draft, id_columns=("id",))
