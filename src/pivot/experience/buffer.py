"""The experience buffer: for every prompt that was ever solved, its success rate and what solved it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pivot.experience.eviction import lightest_row, surviving_responses
from pivot.experience.packing import NOTHING, PackedResponses, flatten, unflatten
from pivot.experience.records import BufferRow, BufferStats, Draw, StoredResponse
from pivot.experience.rows import STORED, RowColumns
from pivot.experience.sampler import draw_without_replacement
from pivot.experience.storage import load_state, save_state


class ExperienceBuffer:
    """Rows by prompt id. Collects from the first step on; drawn from once the `ReplayGate` is open.

    A row's success rate p-hat is that of its latest visit, its weight p(1-p) follows from it. A row of weight
    0 sleeps: it keeps its responses, is never drawn, and wakes with a later visit of 0 < k < G.

    The same seed and the same calls give the same draws; saving and loading in between changes nothing.

    Args:
        responses_per_prompt: at most so many responses a prompt, oldest out first. G in our default.
        max_prompts: at most so many rows, lowest weight out first. None: no cap.
        seed: of the buffer's own generator, which is part of its state.
    """

    def __init__(
        self, *, responses_per_prompt: int = 8, max_prompts: int | None = None, seed: int = 0
    ) -> None:
        if responses_per_prompt < 1:
            raise ValueError(f"responses_per_prompt must be at least 1, got {responses_per_prompt}")
        if max_prompts is not None and max_prompts < 1:
            raise ValueError(f"max_prompts must be at least 1 or None, got {max_prompts}")
        self.responses_per_prompt = responses_per_prompt
        self.max_prompts = max_prompts
        self._generator = np.random.Generator(np.random.PCG64(seed))
        self._ids: list[str] = []
        self._index: dict[str, int] = {}
        self._packs: list[PackedResponses] = []
        self._rows = RowColumns()
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
        """Take in a visit: p-hat becomes k/G, and the successful responses join those that are kept.

        A prompt without a row gets one only if there is a response to keep. For a prompt with a row, k = 0
        keeps its responses and puts it to sleep.

        Args:
            num_correct: k, over all responses of the visit, truncated ones included.
            num_responses: G.
            responses: the successful ones that may be replayed, so never truncated ones. At most k.
            step: the present step; never less than at an earlier call.
        """
        if not 0 <= num_correct <= num_responses or num_responses < 1:
            raise ValueError(
                f"num_correct must lie in [0, num_responses], got {num_correct} of {num_responses}"
            )
        if len(responses) > num_correct:
            raise ValueError(
                f"responses must be successful ones, got {len(responses)} with num_correct={num_correct}"
            )
        if step < self._newest_step:
            raise ValueError(f"step must not fall, got {step} after {self._newest_step}")
        self._newest_step = step
        row = self._index.get(prompt_id)
        if row is None:
            if not responses:
                return
            row = self._append(prompt_id)
        self._rows.visit(
            row, num_correct=num_correct, num_sampled=num_responses, step=step, touched=self._next_touch
        )
        self._next_touch += 1
        if responses:
            self._store(row, responses, step)
        while self.max_prompts is not None and len(self) > self.max_prompts:
            self._remove(lightest_row(self._rows.weights, self._rows["touched"]))

    def draw(self, num_draws: int, *, exclude: Collection[str] = (), step: int | None = None) -> list[Draw]:
        """Rows to replay: without replacement, with probability proportional to p(1-p) (Eq. 6).

        Args:
            num_draws: with fewer eligible rows than this, all of them are drawn.
            exclude: prompt ids that are not eligible this time, e.g. those already in the batch.
            step: the present step, for the ages; None: the newest one recorded.
        """
        weights_N = self._rows.weights
        excluded = [self._index[prompt_id] for prompt_id in exclude if prompt_id in self._index]
        if excluded:
            weights_N = weights_N.copy()
            weights_N[excluded] = 0.0
        drawn = draw_without_replacement(weights_N, num_draws, self._generator)
        if drawn.size == 0:
            return []
        self._rows["times_drawn"][drawn] += 1
        total = float(weights_N.sum())
        now = self._newest_step if step is None else step
        return [self._draw(row, float(weights_N[row]) / total, now) for row in drawn.tolist()]

    def candidates(self, prompt_id: str) -> list[StoredResponse]:
        """The stored responses of a row, oldest first, as copies; an unknown id is a KeyError."""
        return [
            dataclasses.replace(
                response,
                token_ids=response.token_ids.copy(),
                logprobs=None if response.logprobs is None else response.logprobs.copy(),
            )
            for response in self._packs[self._index[prompt_id]].unpack()
        ]

    def update_scores(self, prompt_id: str, scores: Mapping[int, tuple[float, float]], *, step: int) -> None:
        """Overwrite (H, V) of a row's responses, by serial, with what the weights of `step` say of them."""
        records = self._packs[self._index[prompt_id]].records
        unknown = set(scores) - set(records["serial"].tolist())
        if unknown:
            raise ValueError(f"scores names serials that {prompt_id!r} does not hold: {sorted(unknown)}")
        for index, serial in enumerate(records["serial"].tolist()):
            if serial in scores:
                records["entropy"][index], records["dependency"][index] = scores[serial]
                records["scored_step"][index] = step

    def row(self, prompt_id: str) -> BufferRow:
        """What is known of one prompt; an unknown id is a KeyError."""
        return self._row(self._index[prompt_id])

    def rows(self) -> Iterator[BufferRow]:
        """All rows, in no order of meaning."""
        return (self._row(row) for row in range(len(self)))

    def stats(self, step: int | None = None) -> BufferStats:
        """The buffer in a few numbers, as of `step` (None: the newest one recorded)."""
        steps, k, group = self._rows["step"], self._rows["num_correct"], self._rows["num_sampled"]
        now = self._newest_step if step is None else step
        return BufferStats(
            size=len(self),
            eligible=int(np.count_nonzero(self._rows.weights)),
            responses=self._num_responses,
            bytes=self._num_bytes + self._rows.nbytes,
            success_histogram=tuple(np.bincount(np.minimum(k * 10 // group, 9), minlength=10).tolist()),
            oldest_step=int(steps.min()) if len(self) else None,
            newest_step=int(steps.max()) if len(self) else None,
            mean_age=float(now - steps.mean()) if len(self) else 0.0,
            draws=int(self._rows["times_drawn"].sum()),
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything, exactly: JSON values under `meta`, `prompt_ids`, numpy arrays under `arrays`."""
        meta = {
            "responses_per_prompt": self.responses_per_prompt,
            "max_prompts": self.max_prompts,
            "next_serial": self._next_serial,
            "next_touch": self._next_touch,
            "newest_step": self._newest_step,
            "generator": self._generator.bit_generator.state,
        }
        rows = {f"row.{name}": column for name, column in self._rows.state().items()}
        return {"meta": meta, "prompt_ids": list(self._ids), "arrays": {**rows, **flatten(self._packs)}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become the buffer whose `state_dict` this is, its limits and its generator included."""
        meta, arrays = state["meta"], state["arrays"]
        self.responses_per_prompt = meta["responses_per_prompt"]
        self.max_prompts = meta["max_prompts"]
        self._next_serial = meta["next_serial"]
        self._next_touch = meta["next_touch"]
        self._newest_step = meta["newest_step"]
        self._generator.bit_generator.state = meta["generator"]
        self._ids = list(state["prompt_ids"])
        self._index = {prompt_id: row for row, prompt_id in enumerate(self._ids)}
        self._rows = RowColumns({name: arrays[f"row.{name}"] for name in STORED})
        self._packs = unflatten(arrays)
        self._num_responses = sum(map(len, self._packs))
        self._num_bytes = sum(pack.nbytes for pack in self._packs) + sum(map(_num_bytes, self._ids))

    def save(self, folder: Path) -> None:
        """Write the buffer below `folder` (see `storage.py`)."""
        save_state(self.state_dict(), folder)

    @classmethod
    def load(cls, folder: Path) -> ExperienceBuffer:
        """The buffer that was saved below `folder`; a missing or damaged one is a UserError."""
        buffer = cls()
        buffer.load_state_dict(load_state(folder))
        return buffer

    def _append(self, prompt_id: str) -> int:
        row = self._rows.append()
        self._index[prompt_id] = row
        self._ids.append(prompt_id)
        self._num_bytes += _num_bytes(prompt_id)
        self._packs.append(NOTHING)
        return row

    def _remove(self, row: int) -> None:
        """Drop a row; the last one takes its index."""
        self._replace_pack(row, NOTHING)
        self._num_bytes -= _num_bytes(self._ids[row])
        self._rows.remove(row)
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
        return BufferRow(
            prompt_id=self._ids[row],
            num_correct=int(self._rows["num_correct"][row]),
            num_sampled=int(self._rows["num_sampled"][row]),
            step=int(self._rows["step"][row]),
            times_drawn=int(self._rows["times_drawn"][row]),
            num_stored=len(self._packs[row]),
        )


def _num_bytes(prompt_id: str) -> int:
    return len(prompt_id.encode("utf-8", "surrogatepass"))
