"""A whole data set: where its rows are, what is refused, and what a user should know before using it."""

from __future__ import annotations

from pathlib import Path

from pivot.data.build import PromptBuilder
from pivot.data.finder import ImageFinder
from pivot.data.hub import download
from pivot.data.layout import Format
from pivot.data.rows import Rows, open_rows, split_of
from pivot.data.spec import DataSet, DataSpec, SkippedRow
from pivot.errors import UserError
from pivot.types import Prompt

_NAMED_IN_ERRORS = 5


def load_format(known: Format, spec: DataSpec) -> DataSet:
    """All rows of a data set in their order, each a prompt or a skipped row with its reason."""
    rows, finder, split = _open(known, spec)
    builder = PromptBuilder(known, spec, split, known.layout(rows.columns, spec), finder)
    built: list[Prompt | SkippedRow] = []
    for row in rows:
        if spec.limit is not None and row.number >= spec.limit:
            break
        built.append(builder.build(row))
    data = DataSet(known.name, split, tuple(built), builder.num_duplicates)
    if spec.bad_rows == "refuse":
        _refuse_broken(data)
        _refuse_repeated(data, builder.repeated)
    return DataSet(data.name, split, data.rows, data.num_duplicates, _count_warnings(known, spec, data))


def _open(known: Format, spec: DataSpec) -> tuple[Rows, ImageFinder, str]:
    """The rows and the finder of their images; the split is the asked one, or what a local name tells."""
    if spec.path is not None:
        path = Path(spec.path).expanduser()
        split = spec.split or split_of(path) or known.split
        rows = open_rows(path, spec.split or known.split, spec.config, known.files)
        return rows, ImageFinder(rows.root, absolute_paths=spec.absolute_paths), split
    hub_id = spec.name if "/" in spec.name else known.hub_id
    split, config = spec.split or known.split, spec.config or known.config
    files = known.files if hub_id == known.hub_id else ()
    found = download(hub_id, split, config, spec.revision, files)
    rows = open_rows(found.folder, split, config, files)
    return rows, ImageFinder(found.folder, boundary=found.boundary), split


def _refuse_broken(data: DataSet) -> None:
    broken = [row for row in data.skipped if row.broken]
    if broken:
        named = "; ".join(f"{row.id}: {row.reason}" for row in broken[:_NAMED_IN_ERRORS])
        more = f"; and {len(broken) - _NAMED_IN_ERRORS} more" if len(broken) > _NAMED_IN_ERRORS else ""
        raise UserError(
            f"{len(broken)} of {len(data.rows)} rows of {data.name}/{data.split} cannot be used "
            f"({named}{more}): mend them, or leave them out with bad_rows=skip."
        )


def _refuse_repeated(data: DataSet, repeated: list[str]) -> None:
    if repeated:
        named = ", ".join(repeated[:_NAMED_IN_ERRORS]) + ", ..." * (len(repeated) > _NAMED_IN_ERRORS)
        raise UserError(
            f"{len(repeated)} rows of {data.name}/{data.split} repeat an id ({named}): make them unique, or "
            "let them be numbered with bad_rows=skip."
        )


def _count_warnings(known: Format, spec: DataSpec, data: DataSet) -> tuple[str, ...]:
    expected = known.expected.get(data.split)
    if expected is None or spec.limit is not None:
        return ()
    meant = sum(isinstance(row, Prompt) or row.broken for row in data.rows)
    broken = [row for row in data.skipped if row.broken]
    warnings = []
    if meant != expected:
        warnings.append(
            f"{data.name}/{data.split} has {meant:,} rows here, {expected:,} are expected: "
            "results do not compare with published ones."
        )
    if broken:
        warnings.append(f"{data.name}/{data.split}: {len(broken):,} rows cannot be used. {data.summary()}")
    return tuple(warnings)
