"""Text from data, models and files that is safe to print to a terminal.

Everything that a command prints passes through one of two places: `SafeStream`, which `pivot.cli.main` puts before
standard output and error, and `pivot.console.Console`, which writes its own colours and cursor movements.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from typing import Any, TextIO, cast

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff"  # control characters, surrogates, noncharacters
    "\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]"  # marks that change the order in which text is displayed
)


def printable(text: str) -> str:
    """The text with control characters, bidirectional marks and surrogates as visible escapes (`\\u001b`).

    Newlines and tabs are kept. The escapes are JSON's, so JSON stays valid and keeps its value. The result
    is valid in XML.
    """
    return _UNSAFE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


class SafeStream:
    """A text stream that writes everything in its printable form."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream
        """The stream itself; the name under which rich looks for it."""

    def write(self, text: str) -> int:
        # Progress bars of libraries go back to the start of their line with the first character of a write.
        kept = text[:1] if text.startswith("\r") else ""
        self.rich_proxied_file.write(kept + printable(text[len(kept) :]))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def protect_output() -> None:
    """Let standard output and error show control characters from data as text."""
    if not isinstance(sys.stdout, SafeStream):
        sys.stdout = cast(TextIO, SafeStream(sys.stdout))
    if not isinstance(sys.stderr, SafeStream):
        sys.stderr = cast(TextIO, SafeStream(sys.stderr))


@cache
def warn(sentence: str) -> None:
    """Print a sentence on standard error, once per process."""
    print(printable(sentence), file=sys.stderr)
