"""What earlier steps say about a step: spikes of loss and gradient, responses losing the format, steps underfilled."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

WINDOW = 32
"""Steps looked back on."""
ENOUGH = 8
"""Steps before anything is called usual."""
LOUD = 10.0
"""A spike of this size is reported."""
_TO_SIGMA = 1.4826
"""Median absolute deviation -> standard deviation, for normal noise."""
LOST_FORM = 0.05
"""Reported when the share of well-formed responses falls by this much."""
_LOSS, _GRADIENT, _FORM = "loss/total", "optim/grad_norm_max", "reward/format"


class History:
    """The last steps' losses and gradient norms. It follows from the metrics, so a resumed run has the same one."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._past: dict[str, deque[float]] = {key: deque(maxlen=WINDOW) for key in (_LOSS, _GRADIENT)}
        for row in rows:
            self.add(row)

    def add(self, row: Mapping[str, Any]) -> None:
        """Remember a step; steps without an update, and numbers that are not finite, say nothing of the usual."""
        for key, past in self._past.items():
            if row.get(key) is not None:
                past.append(row[key])

    def spikes(self, row: Mapping[str, Any]) -> dict[str, float]:
        """`loss/spike` in robust standard deviations and `optim/grad_spike` in medians; absent without enough past."""
        found: dict[str, float] = {}
        losses, norms = self._past[_LOSS], self._past[_GRADIENT]
        if row.get(_LOSS) is not None and len(losses) >= ENOUGH:
            centre = median(losses)
            spread = _TO_SIGMA * median(abs(loss - centre) for loss in losses)
            found["loss/spike"] = abs(row[_LOSS] - centre) / max(spread, 1e-8)
        if row.get(_GRADIENT) is not None and len(norms) >= ENOUGH:
            found["optim/grad_spike"] = row[_GRADIENT] / max(median(norms), 1e-8)
        return found


def loud(spikes: Mapping[str, float]) -> str | None:
    """One sentence about spikes that a person should see; None where there are none."""
    told = {
        "loss/spike": "the loss is {:.0f} standard deviations off",
        "optim/grad_spike": "the gradient norm is {:.0f} times the median",
    }
    parts = [told[key].format(value) for key, value in spikes.items() if value >= LOUD]
    return f"{' and '.join(parts)} of the last steps" if parts else None


class FullnessWatch:
    """Notices steps that train on fewer groups than they asked for: the first one, then each that has fewer still.

    It is derived from the metrics, so a resumed run says what an uninterrupted one would.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._fewest = 1.0
        for row in rows:
            self.add(row)

    def add(self, row: Mapping[str, Any]) -> str | None:
        """Remember a step; a sentence where it is emptier than all before."""
        kept, wanted = row.get("rollout/groups_kept"), row.get("rollout/groups_wanted")
        if not kept or not wanted or kept / wanted >= self._fewest:
            return None
        self._fewest = kept / wanted
        return (
            f"only {kept} of {wanted} groups have both right and wrong responses after {row['rollout/tries']} rounds "
            f"and {row['rollout/groups']} prompts; the step trains on those"
        )


class FormWatch:
    """Notices when responses lose the template's form, which they can do long before accuracy shows it.

    It follows from the metrics, so a resumed run says what an unbroken one would.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._past: deque[float] = deque(maxlen=WINDOW // 2)
        self._best, self._next_fall = 0.0, LOST_FORM
        for row in rows:
            self.add(row)

    def add(self, row: Mapping[str, Any]) -> str | None:
        """Remember a step; a sentence when the mean over a window has fallen, and whenever the fall has doubled."""
        if row.get(_FORM) is None:
            return None
        self._past.append(row[_FORM])
        if len(self._past) < WINDOW // 2:
            return None
        share = sum(self._past) / len(self._past)
        self._best = max(self._best, share)
        if share > self._best - self._next_fall:
            return None
        self._next_fall = 2 * (self._best - share)
        return (
            f"responses are losing the template's form: {share:.0%} keep it over the last {len(self._past)} steps, "
            f"{self._best:.0%} did at best; a lower train.lr often helps (docs/metrics.md)"
        )
