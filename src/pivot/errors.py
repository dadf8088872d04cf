"""The exception for a user's mistake, and hints at what was meant."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """One sentence: what was given, what was expected, what to do. The command prints it and exits with code 2."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'geometry3k'?`, with a leading space, for the closest known name; empty if none is close."""
    near = difflib.get_close_matches(name.lower().replace("_", "-"), list(known), n=1, cutoff=0.4)
    return f" Did you mean {near[0]!r}?" if near else ""


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """`the nearest is train.lr`, or all there is where nothing is near."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    if close:
        return f"the nearest is {prefix}{close[0]}"
    return "there are " + ", ".join(f"{prefix}{word}" for word in known)
