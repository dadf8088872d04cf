"""Lists every setting with its value, type and description, as text or as Markdown."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any

from pivot.config.schema import FieldInfo, all_fields, method_fields, section_doc, sections, short_type
from pivot.config.sections import Config
from pivot.method import Method

WIDTH = 110
NAMES = ("method.name", "method.summary")


def describe(config: Config | None = None) -> str:
    """A readable listing, section by section: `train.lr = 1e-06 (float)` and its doc below."""
    config = config or Config()
    lines: list[str] = []
    for name, value in sections(config):
        lines += ["", f"{name}: {section_doc(type(value))}"]
        for part, found in field_groups(name, value):
            lines += ["", f"  # {section_doc(part)}"] if part is not None else []
            lines += [line for info in found for line in describe_field(info)]
    return "\n".join(lines[1:])


def field_groups(name: str, section: Any) -> Iterator[tuple[type | None, list[FieldInfo]]]:
    """The fields of a section; those of a method part by part."""
    if isinstance(section, Method):
        yield None, [info for info in all_fields(section, f"{name}.") if info.path in NAMES]
        yield from method_fields(section, f"{name}.")
    else:
        yield None, list(all_fields(section, f"{name}."))


def describe_field(info: FieldInfo) -> list[str]:
    """The lines of one field."""
    head = f"  {info.path} = {spell(info.value)}  ({short_type(info.hint)})"
    return [head, *textwrap.wrap(info.doc, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)]


def reference(config: Config | None = None) -> str:
    """The same as Markdown tables with the defaults."""
    config = config or Config()
    parts: list[str] = []
    for name, value in sections(config):
        text = [f"## `{name}`", section_doc(type(value))]
        for part, found in field_groups(name, value):
            text += ["", section_doc(part)] if part is not None else []
            text += ["", "| setting | default | type | description |", "|---|---|---|---|", *map(_row, found)]
        parts.append("\n".join(text))
    return "\n\n".join(parts) + "\n"


def _row(info: FieldInfo) -> str:
    cells = [f"`{info.path}`", f"`{spell(info.value)}`", short_type(info.hint), info.doc]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def spell(value: Any) -> str:
    """A value as `--set` takes it."""
    if value is None:
        return "null"
    if isinstance(value, tuple):
        return "[" + ", ".join(spell(item) for item in value) + "]"
    if isinstance(value, bool):
        return json.dumps(value)
    return str(value)
