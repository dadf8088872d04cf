"""Fresh prompts from several data sets in given shares."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pivot.training.selection import FreshStream


class MixedStream:
    """Interleaves one stream per set so that each has its share at every moment; no randomness beyond the streams'.

    The next prompt comes from the set that is furthest behind its share. A set whose prompts are all excluded is passed
    over.

    Example:
        MixedStream([FreshStream(a, 0), FreshStream(b, 0)], [3.0, 1.0]).take(4)  # three of a, one of b
    """

    def __init__(self, streams: Sequence[FreshStream], weights: Sequence[float]) -> None:
        assert len(streams) == len(weights)
        self._streams, self._weights = list(streams), list(weights)
        self._taken = [0] * len(streams)

    def take(self, num_prompts: int, exclude: Collection[str] = ()) -> list[str]:
        """The next prompts that are not in `exclude`; fewer only when no others are left."""
        used, found = set(exclude), []
        open_sets = set(range(len(self._streams)))
        while len(found) < num_prompts and open_sets:
            chosen = min(open_sets, key=lambda i: ((self._taken[i] + 1) / self._weights[i], i))
            taken = self._streams[chosen].take(1, used)
            if not taken:
                open_sets.remove(chosen)
                continue
            self._taken[chosen] += 1
            used.update(taken)
            found += taken
        return found

    def state_dict(self) -> dict[str, Any]:
        return {"taken": list(self._taken), "streams": [stream.state_dict() for stream in self._streams]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._taken = list(state["taken"])
        for stream, saved in zip(self._streams, state["streams"], strict=True):
            stream.load_state_dict(saved)


def fresh_stream(
    sets: Sequence[Sequence[str]], weights: Sequence[float], seed: int
) -> FreshStream | MixedStream:
    """One stream over all prompts, or one per set where there are weights."""
    if not weights or len(sets) == 1:
        return FreshStream([prompt_id for ids in sets for prompt_id in ids], seed)
    return MixedStream([FreshStream(ids, seed) for ids in sets], weights)
