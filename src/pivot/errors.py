"""The exception for a user's mistake, and the hint at what was meant."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """One sentence: what was given, what was expected, what to do. The command prints it and exits with code 2."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'geometry3k'?`, with a leading space, for the closest known name; empty if none is close."""
    near = difflib.get_close_matches(name.lower().replace("_", "-"), list(known), n=1, cutoff=0.4)
    return f" Did you mean {near[0]!r}?" if near else ""
