"""Watches the numbers of a run: updates skipped because a value was not finite, spikes of loss and gradient, responses
that stop following the format, and steps with too few groups. Everything is derived from the metrics of earlier steps,
so a resumed run reports what an uninterrupted one would."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import Any

import torch

from pivot.errors import UserError
from pivot.models.policy import Policy
from pivot.runs.folder import RunFolder
from pivot.training.trainer import StepOutcome
from pivot.training.update import Skipped

SHOWN = 5
"""Prompt ids that a message names; nonfinite.jsonl has them all."""
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


class Guard:
    """Watches over the updates that were skipped because a loss, reward, gradient or weight was not finite."""

    def __init__(self, folder: RunFolder, limit: int, say: Callable[[str], None]) -> None:
        self._folder, self._limit, self._say = folder, limit, say
        self.bad_updates = 0
        """Skipped ones in a row."""

    def recall(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Count as if the run had never stopped, from the metrics of its steps so far."""
        for row in rows:
            self._count(row.get("optim/updates", 0), row.get("optim/skipped_updates", 0))

    def observe(self, outcome: StepOutcome, policy: Policy) -> None:
        """Name what a step skipped; too many in a row end the run before anything good is overwritten."""
        if outcome.update is None:
            return
        skipped = outcome.update.skipped
        for one in skipped:
            self._say(f"step {outcome.step}: {one.what} is not finite, update skipped; prompts: {_some(one)}")
        if skipped:
            self._folder.append_nonfinite(
                {"step": outcome.step, "what": one.what, "prompts": one.prompts} for one in skipped
            )
            self.check_weights(policy, outcome.step)
        self._count(outcome.update.num_updates, len(skipped))
        if self.bad_updates >= self._limit:
            raise UserError(
                f"{self.bad_updates} updates in a row were not finite, the last because of its {skipped[-1].what} "
                f"({self._folder.path / 'nonfinite.jsonl'} names the prompts); the last checkpoint is good: "
                f"{_ADVICE[skipped[-1].what]}, and resume from it"
            )

    def check_weights(self, policy: Policy, step: int) -> None:
        """Weights that are not finite never recover and are never saved: the run ends."""
        broken = self.find_nonfinite(policy)
        if broken:
            raise UserError(
                f"after step {step} {len(broken)} of the model's weights are not finite, {broken[0]} first; they are "
                "not saved and the last checkpoint is good: lower train.lr, or train.grad_clip, and resume from it"
            )

    def find_nonfinite(self, policy: Policy) -> list[str]:
        """Names of the broken weights; another engine knows where else they are."""
        return nonfinite_weights(policy)

    def _count(self, made: float, skipped: float) -> None:
        self.bad_updates = 0 if made else self.bad_updates + int(skipped)


_ADVICE = {
    "reward": "correct the reward function",
    "loss": "lower train.lr or leave these prompts out",
    "gradient": "lower train.lr or leave these prompts out",
}


def nonfinite_weights(policy: Policy) -> list[str]:
    """Names of the parameters that hold a NaN or an infinity."""
    return [
        name for name, weight in policy.model.named_parameters() if not bool(torch.isfinite(weight).all())
    ]


def _some(skipped: Skipped) -> str:
    more = len(skipped.prompts) - SHOWN
    return ", ".join(skipped.prompts[:SHOWN]) + (f" and {more} more" if more > 0 else "")


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
