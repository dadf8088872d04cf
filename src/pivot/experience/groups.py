"""Whole groups of earlier steps, for those of equal rewards (VL-Rethinker's SSR, TRL's replay buffer)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pivot.experience.packing import PackedResponses, flatten, unflatten
from pivot.experience.records import StoredResponse
from pivot.experience.replay import draw_without_replacement
from pivot.experience.storage import load_state, save_state
from pivot.seeding import stable_seed


@dataclass(frozen=True, eq=False)
class StoredGroup:
    """The G responses of a prompt with the log-probs and rewards of the step that sampled them."""

    prompt_id: str
    responses: tuple[StoredResponse, ...]
    success: tuple[bool, ...]
    truncated: tuple[bool, ...]
    score: float
    """The weight with which it is drawn, above 0."""
    step: int


class GroupStore:
    """The latest group of each prompt whose rewards differed, oldest first.

    Draws depend on (seed, step) and the stored groups alone, so the groups are the whole state.

    Args:
        limit: most groups.
        by_score: drop the group of lowest score beyond the limit, the older of equal ones; else the oldest.
        seed: of the draws.
    """

    def __init__(self, limit: int, *, by_score: bool = False, seed: int = 0) -> None:
        self.limit, self.by_score, self.seed = limit, by_score, seed
        self._groups: dict[str, StoredGroup] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, group: StoredGroup) -> None:
        """Store a group in the place of an earlier one of its prompt."""
        self._groups.pop(group.prompt_id, None)
        self._groups[group.prompt_id] = group
        if len(self) > self.limit:
            groups = list(self._groups.values())
            out = min(groups, key=lambda one: one.score) if self.by_score else groups[0]
            del self._groups[out.prompt_id]

    def draw(self, num_groups: int, step: int, exclude: Collection[str] = ()) -> list[StoredGroup]:
        """Different groups with probability proportional to their scores; all eligible ones if there are fewer."""
        groups = [group for group in self._groups.values() if group.prompt_id not in exclude]
        generator = np.random.Generator(np.random.Philox(key=stable_seed(self.seed, step, "stored groups")))
        scores_N = np.array([group.score for group in groups], dtype=np.float64)
        return [groups[i] for i in draw_without_replacement(scores_N, max(num_groups, 0), generator)]

    def snapshot(self) -> GroupStore:
        """A copy of this state, which later additions do not affect; the groups themselves never change."""
        twin = GroupStore(self.limit, by_score=self.by_score, seed=self.seed)
        twin._groups = dict(self._groups)
        return twin

    def state_dict(self) -> dict[str, Any]:
        """The groups in the form of the buffer's file."""
        groups = list(self._groups.values())
        arrays = flatten([PackedResponses.pack(group.responses) for group in groups])
        arrays["group.score"] = np.array([group.score for group in groups], dtype=np.float64)
        arrays["group.step"] = np.array([group.step for group in groups], dtype=np.int64)
        for name in ("success", "truncated"):
            flags = [flag for group in groups for flag in getattr(group, name)]
            arrays[f"group.{name}"] = np.array(flags, dtype=np.bool_)
        return {"meta": {}, "prompt_ids": [group.prompt_id for group in groups], "arrays": arrays}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        arrays, first = state["arrays"], 0
        self._groups = {}
        packs = unflatten(arrays)
        scores, steps = arrays["group.score"].tolist(), arrays["group.step"].tolist()
        for name, pack, score, step in zip(state["prompt_ids"], packs, scores, steps, strict=True):
            flags = [
                tuple(arrays[f"group.{kind}"][first : first + len(pack)].tolist())
                for kind in ("success", "truncated")
            ]
            self._groups[name] = StoredGroup(name, tuple(pack.unpack()), flags[0], flags[1], score, step)
            first += len(pack)

    def save(self, folder: Path) -> None:
        """Write the groups below `folder`."""
        save_state(self.state_dict(), folder)

    def load(self, folder: Path) -> None:
        """Read what `save` wrote; raises UserError if it is missing or damaged."""
        self.load_state_dict(load_state(folder))
