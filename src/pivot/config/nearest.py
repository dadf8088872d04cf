"""What a mistyped name probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from pivot.config.schema import all_fields
from pivot.config.sections import Config
from pivot.errors import UserError, nearest


def unknown_setting(key: str, known: Iterable[str], prefix: str) -> UserError:
    """Names the nearest key of the section, else a setting of that name or with those words in its doc."""
    known = list(known)
    if not difflib.get_close_matches(key, known, n=1, cutoff=0.8):
        words = key.replace("_", " ").lower()
        everything = list(all_fields(Config()))
        same_name = [info.path for info in everything if info.path.rpartition(".")[2] == key]
        same_words = [info.path for info in everything if len(words) > 3 and words in info.doc.lower()]
        for path in (*same_name, *same_words):
            return UserError(f"There is no setting {prefix}{key}; the nearest is {path}.")
    return UserError(f"There is no setting {prefix}{key}; {nearest(key, known, prefix)}.")
