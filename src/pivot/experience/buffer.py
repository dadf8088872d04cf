"""The experience buffer: the success rate of every prompt that was ever solved, and its correct responses."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pivot.experience.packing import NOTHING, PackedResponses, flatten, surviving_responses, unflatten
from pivot.experience.records import BufferRow, BufferStats, Draw, StoredResponse
from pivot.experience.replay import bucket_weights, draw_without_replacement
from pivot.experience.storage import load_state, save_state

ROW = np.dtype(
    [
        ("num_correct", np.int32),
        ("num_sampled", np.int32),
        ("step", np.int64),
        ("touched", np.int64),
        ("times_drawn", np.int64),
        ("weight", np.float64),
    ]
)
"""k and G of the latest group, its step, its position in the order of `record` calls, the number of draws, p(1-p)."""
SAVED = tuple(name for name in ROW.names or () if name != "weight")
"""The weight follows from k and G; it is kept because a draw reads all weights, and is not saved."""


class ExperienceBuffer:
    """Rows by prompt id. Records from the first step on; drawn from once the `ReplayGate` is open.

    A row's success rate p-hat is that of its latest group, and its weight is p(1-p). A row of weight 0 keeps its
    responses but is not drawn until a later group has 0 < k < G.

    The same seed and the same calls give the same draws, with or without saving and loading in between.

    Args:
        responses_per_prompt: maximum number of responses per prompt; the oldest are dropped first. Our default is G.
        max_prompts: maximum number of rows; those of lowest weight are dropped first. None: no limit.
        bucket_sigma: draw rows by ExGRPO's `bucket_weights`. None: by p(1-p) (Eq. 6).
        uniform: draw all rows with p(1-p) > 0 with one probability instead.
        seed: of the buffer's own random generator, which is part of its state.
    """

    def __init__(
        self,
        *,
        responses_per_prompt: int = 8,
        max_prompts: int | None = None,
        bucket_sigma: float | None = None,
        uniform: bool = False,
        seed: int = 0,
    ) -> None:
        if responses_per_prompt < 1:
            raise ValueError(f"responses_per_prompt must be at least 1, got {responses_per_prompt}")
        if max_prompts is not None and max_prompts < 1:
            raise ValueError(f"max_prompts must be at least 1 or None, got {max_prompts}")
        self.responses_per_prompt = responses_per_prompt
        self.max_prompts = max_prompts
        self.bucket_sigma = bucket_sigma
        self.uniform = uniform
        self._generator = np.random.Generator(np.random.PCG64(seed))
        self._ids: list[str] = []
        self._index: dict[str, int] = {}
        self._packs: list[PackedResponses] = []
        self._table = np.zeros(64, dtype=ROW)
        self._num_responses = 0
        self._num_bytes = 0
        self._next_serial = 0
        self._next_touch = 0
        self._newest_step = 0

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, prompt_id: object) -> bool:
        return prompt_id in self._index

    def record(
        self,
        prompt_id: str,
        *,
        num_correct: int,
        num_responses: int,
        responses: Sequence[StoredResponse],
        step: int,
    ) -> None:
        """Record a group: p-hat becomes k/G, and the successful responses are added to the stored ones.

        A prompt gets a row with its first response to store. A prompt with a row keeps its responses when k = 0, but
        is not drawn until a later group succeeds.

        Args:
            num_correct: k, over all responses of the group, including truncated ones.
            num_responses: G.
            responses: the successful responses that may be replayed (never truncated ones); at most k.
            step: the current step; must not decrease between calls.
        """
        if not 0 <= num_correct <= num_responses or num_responses < 1:
            raise ValueError(
                f"num_correct must be in [0, num_responses], got {num_correct} of {num_responses}"
            )
        if len(responses) > num_correct:
            raise ValueError(
                f"responses must be successful, got {len(responses)} with num_correct={num_correct}"
            )
        if step < self._newest_step:
            raise ValueError(f"step must not decrease, got {step} after {self._newest_step}")
        self._newest_step = step
        row = self._index.get(prompt_id)
        if row is None:
            if not responses:
                return
            row = self._append(prompt_id)
        known, weight = self._rows[row], float(_weight(num_correct, num_responses))
        self._rows[row] = (num_correct, num_responses, step, self._next_touch, known["times_drawn"], weight)
        self._next_touch += 1
        if responses:
            self._store(row, responses, step)
        while self.max_prompts is not None and len(self) > self.max_prompts:
            self._remove(lightest_row(self._rows["weight"], self._rows["touched"]))

    def draw(self, num_draws: int, *, exclude: Collection[str] = (), step: int | None = None) -> list[Draw]:
        """Rows to replay: without replacement, with probability proportional to p(1-p) (Eq. 6), by bucket or uniform.

        Args:
            num_draws: if fewer rows are eligible, all of them are drawn.
            exclude: prompt ids that are not eligible this time, e.g. those already in the batch.
            step: the current step, for the ages; None: the newest recorded step.
        """
        weights_N = self._rows["weight"].copy()
        excluded = [self._index[prompt_id] for prompt_id in exclude if prompt_id in self._index]
        if excluded:
            weights_N[excluded] = 0.0
        if self.bucket_sigma is not None:
            k, group = self._rows["num_correct"], self._rows["num_sampled"]
            weights_N = bucket_weights(k, group, weights_N > 0, self.bucket_sigma)
        elif self.uniform:
            weights_N = (weights_N > 0).astype(np.float64)
        drawn = draw_without_replacement(weights_N, num_draws, self._generator)
        if drawn.size == 0:
            return []
        self._rows["times_drawn"][drawn] += 1
        total = float(weights_N.sum())
        now = self._newest_step if step is None else step
        return [self._draw(row, float(weights_N[row]) / total, now) for row in drawn.tolist()]

    def candidates(self, prompt_id: str) -> list[StoredResponse]:
        """Copies of the stored responses of a row, oldest first; an unknown id is a KeyError."""
        return [
            dataclasses.replace(
                response,
                token_ids=response.token_ids.copy(),
                logprobs=None if response.logprobs is None else response.logprobs.copy(),
            )
            for response in self._packs[self._index[prompt_id]].unpack()
        ]

    def update_scores(self, prompt_id: str, scores: Mapping[int, tuple[float, float]], *, step: int) -> None:
        """Overwrite (H, V) of a row's responses, by serial, with values computed by the weights of `step`."""
        row = self._index[prompt_id]
        pack, records = self._packs[row], self._packs[row].records.copy()
        unknown = set(scores) - set(records["serial"].tolist())
        if unknown:
            raise ValueError(f"scores names serials that {prompt_id!r} does not have: {sorted(unknown)}")
        for index, serial in enumerate(records["serial"].tolist()):
            if serial in scores:
                records["entropy"][index], records["dependency"][index] = scores[serial]
                records["scored_step"][index] = step
        self._packs[row] = PackedResponses(pack.token_ids, pack.logprobs, records)

    def rows(self) -> Iterator[BufferRow]:
        """All rows, in no particular order."""
        return (self._row(row) for row in range(len(self)))

    def stats(self, step: int | None = None) -> BufferStats:
        """A summary as of `step` (None: the newest recorded step)."""
        steps, k, group = self._rows["step"], self._rows["num_correct"], self._rows["num_sampled"]
        now = self._newest_step if step is None else step
        return BufferStats(
            size=len(self),
            eligible=int(np.count_nonzero(self._rows["weight"])),
            responses=self._num_responses,
            bytes=self._num_bytes + self._rows.nbytes,
            success_histogram=tuple(np.bincount(np.minimum(k * 10 // group, 9), minlength=10).tolist()),
            oldest_step=int(steps.min()) if len(self) else None,
            newest_step=int(steps.max()) if len(self) else None,
            mean_age=float(now - steps.mean()) if len(self) else 0.0,
            draws=int(self._rows["times_drawn"].sum()),
        )

    def snapshot(self) -> ExperienceBuffer:
        """A copy of this state, which later changes do not affect; shares the stored responses, which never change."""
        twin = copy.copy(self)
        twin._table, twin._generator = self._table.copy(), copy.deepcopy(self._generator)
        twin._ids, twin._index, twin._packs = list(self._ids), dict(self._index), list(self._packs)
        return twin

    def state_dict(self) -> dict[str, Any]:
        """The complete state: JSON values under `meta`, `prompt_ids`, numpy arrays under `arrays`."""
        meta = {
            "responses_per_prompt": self.responses_per_prompt,
            "max_prompts": self.max_prompts,
            "next_serial": self._next_serial,
            "next_touch": self._next_touch,
            "newest_step": self._newest_step,
            "generator": self._generator.bit_generator.state,
        }
        rows = {f"row.{name}": self._rows[name].copy() for name in SAVED}
        return {"meta": meta, "prompt_ids": list(self._ids), "arrays": {**rows, **flatten(self._packs)}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`, including limits and random generator."""
        meta, arrays = state["meta"], state["arrays"]
        self.responses_per_prompt = meta["responses_per_prompt"]
        self.max_prompts = meta["max_prompts"]
        self._next_serial = meta["next_serial"]
        self._next_touch = meta["next_touch"]
        self._newest_step = meta["newest_step"]
        self._generator.bit_generator.state = meta["generator"]
        self._ids = list(state["prompt_ids"])
        self._index = {prompt_id: row for row, prompt_id in enumerate(self._ids)}
        self._table = np.zeros(max(64, len(self._ids)), dtype=ROW)
        for name in SAVED:
            self._rows[name] = arrays[f"row.{name}"]
        self._rows["weight"] = _weight(arrays["row.num_correct"], arrays["row.num_sampled"])
        self._packs = unflatten(arrays)
        self._num_responses = sum(map(len, self._packs))
        self._num_bytes = sum(pack.nbytes for pack in self._packs) + sum(map(_num_bytes, self._ids))

    def save(self, folder: Path) -> None:
        """Write the buffer below `folder` (see `storage.py`)."""
        save_state(self.state_dict(), folder)

    @classmethod
    def load(cls, folder: Path) -> ExperienceBuffer:
        """Load a buffer saved below `folder`; raises UserError if it is missing or damaged."""
        buffer = cls()
        buffer.load_state_dict(load_state(folder))
        return buffer

    @property
    def _rows(self) -> np.ndarray:
        """A view of the used part of the table."""
        return self._table[: len(self._ids)]

    def _append(self, prompt_id: str) -> int:
        row = self._index[prompt_id] = len(self._ids)
        if row == len(self._table):
            self._table = np.concatenate([self._table, np.zeros(row // 2, dtype=ROW)])
        self._ids.append(prompt_id)
        self._rows[row] = 0
        self._num_bytes += _num_bytes(prompt_id)
        self._packs.append(NOTHING)
        return row

    def _remove(self, row: int) -> None:
        """Remove a row; the last one takes its index."""
        self._replace_pack(row, NOTHING)
        self._num_bytes -= _num_bytes(self._ids[row])
        self._rows[row] = self._rows[-1]
        del self._index[self._ids[row]]
        last_id, last_pack = self._ids.pop(), self._packs.pop()
        if row < len(self._ids):
            self._ids[row], self._packs[row] = last_id, last_pack
            self._index[last_id] = row

    def _store(self, row: int, responses: Sequence[StoredResponse], step: int) -> None:
        stamped = [
            dataclasses.replace(response, step=step, scored_step=step, serial=self._next_serial + index)
            for index, response in enumerate(responses)
        ]
        self._next_serial += len(stamped)
        kept = surviving_responses([*self._packs[row].unpack(), *stamped], self.responses_per_prompt)
        self._replace_pack(row, PackedResponses.pack(kept))

    def _replace_pack(self, row: int, pack: PackedResponses) -> None:
        before = self._packs[row]
        self._num_responses += len(pack) - len(before)
        self._num_bytes += pack.nbytes - before.nbytes
        self._packs[row] = pack

    def _draw(self, row: int, probability: float, step: int) -> Draw:
        known = self._row(row)
        return Draw(known.prompt_id, probability, step - known.step, known.times_drawn, known.success_rate)

    def _row(self, row: int) -> BufferRow:
        num_correct, num_sampled, step, _, times_drawn, _ = self._table[row].tolist()
        return BufferRow(self._ids[row], num_correct, num_sampled, step, times_drawn, len(self._packs[row]))


def lightest_row(weights_N: np.ndarray, touched_N: np.ndarray) -> int:
    """The row to remove: the lowest weight p(1-p) and, of equal ones, the one not recorded for the longest time.

    Args:
        touched_N: the position of each row's latest `record` call, all different.
    """
    lightest = np.flatnonzero(weights_N == weights_N.min())
    return int(lightest[np.argmin(touched_N[lightest])])


def _weight(num_correct: np.ndarray | int, num_sampled: np.ndarray | int) -> np.ndarray:
    """p(1-p) = k(G-k)/G^2: exactly 0 for k = 0 and k = G."""
    correct, sampled = np.asarray(num_correct, dtype=np.float64), np.asarray(num_sampled, dtype=np.float64)
    return correct * (sampled - correct) / (sampled * sampled)


def _num_bytes(prompt_id: str) -> int:
    return len(prompt_id.encode("utf-8", "surrogatepass"))
