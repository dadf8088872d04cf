"""Watches the numbers of a run.

`Guard` counts and names updates that were skipped because a value was not finite. The watches report spikes of loss
and gradient, responses that stop following the format, steps with too few groups, and a sampler whose log-probs
differ from the trainer's. All of them are derived from the metrics of earlier steps, so a resumed run reports what an
uninterrupted one would.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from pivot.engines.base import Skipped
from pivot.errors import UserError
from pivot.runs.answers import AnswerWatch
from pivot.runs.folder import RunFolder
from pivot.training.step import StepOutcome

SHOWN = 5
"""Prompt ids that a message names; nonfinite.jsonl has them all."""
WINDOW = 32
"""Past steps that a spike is compared with."""
ENOUGH = 8
"""Steps before a spike is computed."""
LARGE_SPIKE = 10.0
"""A spike of this size is reported."""
MISMATCH = {"float32": 1e-4, "bfloat16": 1e-2}
"""A sampler's divergence from the trainer is reported above this; rounding explains less."""
LOST_FORMAT = 0.05
"""Reported when the share of well-formed responses falls by this much."""
_TO_SIGMA = 1.4826
"""Median absolute deviation -> standard deviation, for normal noise."""
_LOSS, _GRADIENT, _FORMAT = "loss/total", "optim/grad_norm_max", "reward/format"
_ADVICE = {
    "reward": "correct the reward function",
    "loss": "lower train.lr or leave these prompts out",
    "gradient": "lower train.lr or leave these prompts out",
}


class Guard:
    """Ends a run whose losses, rewards, gradients or weights stay non-finite."""

    def __init__(
        self,
        folder: RunFolder,
        limit: int,
        say: Callable[[str], None],
        nonfinite_weights: Callable[[], list[str]],
        past: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        """`past` are the metrics of the steps so far."""
        self._folder, self._limit, self._say = folder, limit, say
        self._nonfinite_weights = nonfinite_weights
        self.bad_updates = 0
        """Skipped updates in a row."""
        self._made = self._skipped = 0.0
        for row in past:
            self._count(row.get("optim/updates", 0), row.get("optim/skipped_updates", 0))

    def observe(self, outcome: StepOutcome) -> None:
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
            self.check_weights(outcome.step)
        self._count(outcome.update.num_updates, len(skipped))
        if self.bad_updates >= self._limit:
            raise UserError(
                f"{self.bad_updates} updates in a row were not finite, the last because of its {skipped[-1].what} "
                f"({self._folder.path / 'nonfinite.jsonl'} names the prompts); the last checkpoint is good: "
                f"{_ADVICE[skipped[-1].what]}, and resume from it"
            )

    def check_weights(self, step: int) -> None:
        """Non-finite weights never recover and are never saved: the run ends."""
        broken = self._nonfinite_weights()
        if broken:
            raise UserError(
                f"after step {step} {len(broken)} of the model's weights are not finite, {broken[0]} first; they are "
                "not saved and the last checkpoint is good: lower train.lr, or train.grad_clip, and resume from it"
            )

    def check_end(self) -> None:
        """A run whose every update was skipped has trained nothing: it ends as failed."""
        if self._skipped and not self._made:
            raise UserError(
                f"the run has trained nothing: all of its {self._skipped:g} updates were skipped because rewards, loss "
                f"or gradient were not finite ({self._folder.path / 'nonfinite.jsonl'} says which, and names the "
                "prompts); correct the reward function or lower train.lr, and train again with another --out"
            )

    def _count(self, made: float, skipped: float) -> None:
        self._made += made
        self._skipped += skipped
        self.bad_updates = 0 if made else self.bad_updates + int(skipped)


def _some(skipped: Skipped) -> str:
    more = len(skipped.prompts) - SHOWN
    return ", ".join(skipped.prompts[:SHOWN]) + (f" and {more} more" if more > 0 else "")


class Watches:
    """All watches of a run."""

    def __init__(self, dtype: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """`rows` are the metrics of the steps so far."""
        self._spikes, self._answers = SpikeWatch(rows), AnswerWatch(rows)
        self._others = (FormatWatch(rows), GroupWatch(rows), self._answers, MismatchWatch(dtype, rows))

    def add(self, row: Mapping[str, Any]) -> tuple[dict[str, float], list[str]]:
        """Remember a step; further metrics of it, and sentences that a user should read."""
        spikes = self._spikes.spikes(row)
        self._spikes.add(row)
        sentences = (spike_message(spikes), *(watch.add(row) for watch in self._others))
        found = {**spikes, "answers/suspicious": len(self._answers.suspicious)}
        return found, [sentence for sentence in sentences if sentence]


class SpikeWatch:
    """Compares a step's loss and gradient norm with those of the last steps."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._past: dict[str, deque[float]] = {key: deque(maxlen=WINDOW) for key in (_LOSS, _GRADIENT)}
        for row in rows:
            self.add(row)

    def add(self, row: Mapping[str, Any]) -> None:
        """Remember a step; steps without an update and non-finite values are left out."""
        for key, past in self._past.items():
            if row.get(key) is not None:
                past.append(row[key])

    def spikes(self, row: Mapping[str, Any]) -> dict[str, float]:
        """`loss/spike` in robust standard deviations, `optim/grad_spike` in medians; absent in the first steps."""
        found: dict[str, float] = {}
        losses, norms = self._past[_LOSS], self._past[_GRADIENT]
        if row.get(_LOSS) is not None and len(losses) >= ENOUGH:
            centre = median(losses)
            spread = _TO_SIGMA * median(abs(loss - centre) for loss in losses)
            found["loss/spike"] = abs(row[_LOSS] - centre) / max(spread, 1e-8)
        if row.get(_GRADIENT) is not None and len(norms) >= ENOUGH:
            found["optim/grad_spike"] = row[_GRADIENT] / max(median(norms), 1e-8)
        return found


def spike_message(spikes: Mapping[str, float]) -> str | None:
    """One sentence about large spikes; None if there are none."""
    told = {
        "loss/spike": "the loss is {:.0f} standard deviations off",
        "optim/grad_spike": "the gradient norm is {:.0f} times the median",
    }
    parts = [told[key].format(value) for key, value in spikes.items() if value >= LARGE_SPIKE]
    return f"{' and '.join(parts)} of the last steps" if parts else None


class GroupWatch:
    """Notices steps that train on fewer groups than they asked for: the first one, then each with fewer still."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._fewest = 1.0
        for row in rows:
            self.add(row)

    def add(self, row: Mapping[str, Any]) -> str | None:
        """Remember a step; a sentence if it has fewer groups than all before."""
        kept, wanted = row.get("rollout/groups_kept"), row.get("rollout/groups_wanted")
        if not kept or not wanted or kept / wanted >= self._fewest:
            return None
        self._fewest = kept / wanted
        return (
            f"only {kept} of {wanted} groups have both right and wrong responses after {row['rollout/tries']} rounds "
            f"and {row['rollout/groups']} prompts; the step trains on those"
        )


class MismatchWatch:
    """Notices a sampler that does not have the trainer's weights: the first time, then whenever it is twice as bad."""

    def __init__(self, dtype: str, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._limit = self._next = MISMATCH[dtype]
        for row in rows:
            self.add(row)

    def add(self, row: Mapping[str, Any]) -> str | None:
        """Remember a step; a sentence if its mismatch is large."""
        found = row.get("rollout/mismatch_kl")
        if found is None or found <= self._next:
            return None
        self._next = 2 * found
        return (
            f"vLLM's log-probs differ from the trainer's: rollout/mismatch_kl is {found:.2g}, expected below "
            f"{self._limit:g}; see docs/gpu.md"
        )


class FormatWatch:
    """Notices when responses stop following the template, which can happen long before accuracy shows it."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._past: deque[float] = deque(maxlen=WINDOW // 2)
        self._best, self._next_fall = 0.0, LOST_FORMAT
        for row in rows:
            self.add(row)

    def add(self, row: Mapping[str, Any]) -> str | None:
        """Remember a step; a sentence when the mean over a window has fallen, and each time the fall has doubled."""
        if row.get(_FORMAT) is None:
            return None
        self._past.append(row[_FORMAT])
        if len(self._past) < WINDOW // 2:
            return None
        share = sum(self._past) / len(self._past)
        self._best = max(self._best, share)
        if share > self._best - self._next_fall:
            return None
        self._next_fall = 2 * (self._best - share)
        return (
            f"fewer responses follow the format: {share:.0%} over the last {len(self._past)} steps, {self._best:.0%} "
            "at best; a lower train.lr often helps (docs/metrics.md)"
        )
