"""What is known of one benchmark."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pivot.data import DataSpec, Format, Layout
from pivot.evaluate.benchmarks import papo_eval


@dataclass(frozen=True, kw_only=True)
class Benchmark(Format):
    """A data set with a fixed evaluation split.

    Example:
        Benchmark(name="mathvista", hub_id="AI4Math/MathVista", split="testmini", layouts=(...), ...)
    """

    title: str
    papo_split: str | None = None
    """Its split of the PAPO-Eval bundle, if it is in there."""
    papo_rows: int | None = None

    def layout(self, columns: tuple[str, ...], spec: DataSpec) -> Layout:
        """Every benchmark also takes the rows of its PAPO-Eval split."""
        if set(papo_eval.LAYOUT.columns) <= set(columns) and not spec.names_columns:
            return papo_eval.LAYOUT
        return super().layout(columns, spec)

    def from_papo_eval(self) -> Benchmark | None:
        """The same benchmark as the PAPO-Eval bundle has it; None where it is not in the bundle."""
        if self.papo_split is None:
            return None
        return replace(
            self,
            hub_id=papo_eval.HUB_ID,
            config=None,
            split=self.papo_split,
            files=papo_eval.files(self.papo_split),
            expected={} if self.papo_rows is None else {self.papo_split: self.papo_rows},
        )
