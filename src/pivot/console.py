"""Rich's console for text that is not ours: names, ids and rows are shown as they are."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from pivot.terminal import printable


class Console(RichConsole):
    """Writes control characters in text as escapes, and takes `[brackets]` and `:words:` literally.

    Styles are given as `style=` or as `rich.text.Text`.
    """

    def __init__(self, *, file: TextIO | None = None, stderr: bool = False) -> None:
        # Looked up now: while a live display runs, rich replaces the standard streams.
        file = file or (sys.stderr if stderr else sys.stdout)
        super().__init__(file=file, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Escaped before it is measured, so that table cells are wide enough."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
