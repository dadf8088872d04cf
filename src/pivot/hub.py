"""Whether the Hugging Face hub answers: one short request instead of the libraries' retries."""

from __future__ import annotations

import urllib.error
import urllib.request
from functools import cache

SECONDS = 5.0
"""How long the hub has to answer."""


@cache
def is_reachable() -> bool:
    """False if `HF_HUB_OFFLINE` is set, or if the hub does not answer; asked once per process."""
    from huggingface_hub import constants

    if constants.is_offline_mode():
        return False
    try:
        urllib.request.urlopen(urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=SECONDS)
    except urllib.error.HTTPError:
        return True  # it answered, if only to refuse
    except OSError:
        return False
    return True
