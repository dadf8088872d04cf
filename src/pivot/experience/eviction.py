"""What is thrown out: old responses of a prompt, light prompts of the buffer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pivot.experience.records import StoredResponse


def surviving_responses(responses: Sequence[StoredResponse], limit: int) -> list[StoredResponse]:
    """At most `limit` different responses, oldest out first.

    `responses` come oldest first. Of two with equal token ids only the later stays, whole: the policy
    has just sampled this response again, so it is as young as any other, and its log-probs and scores belong
    to that moment. The oldest is then the one that the policy has not produced for the longest time.
    """
    latest: dict[bytes, StoredResponse] = {}
    for response in responses:
        key = response.token_ids.tobytes()
        latest.pop(key, None)
        latest[key] = response
    return list(latest.values())[-limit:]


def lightest_row(weights_N: np.ndarray, touched_N: np.ndarray) -> int:
    """The row to throw out: the lowest weight p(1-p); of equal ones the longest without a visit.

    Args:
        touched_N: when each row was last recorded, all different.
    """
    lightest = np.flatnonzero(weights_N == weights_N.min())
    return int(lightest[np.argmin(touched_N[lightest])])
