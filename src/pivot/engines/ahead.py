"""Scores that depend on the step's start alone, computed while other prompts are decoded.

Decoding is a long chain of small products that cannot use a second core well; scoring is a few large ones that release
Python's lock. Where a core is free, a second thread scores during decoding; where none is, the same requests are scored
when their results are first needed. Both ways pack the same rows together, so the numbers are equal bit for bit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch.nn.functional import pad

from pivot.engines.base import ScoreRequest
from pivot.models.encoding import usable_cores
from pivot.models.policy import ResponseStatistics
from pivot.models.rows import PromptWithResponses

Key = tuple[str, bool, str, tuple[bytes, ...]]
"""View, whether with similarity, prompt id and the token ids of a unit's responses."""


class ScoreAhead:
    """Requests of the current step that were announced early, and their results."""

    def __init__(self, score: Callable[[ScoreRequest], ResponseStatistics]) -> None:
        self._score = score
        self._waiting: list[ScoreRequest] = []
        self._found: dict[Key, ResponseStatistics] = {}

    def forget(self) -> None:
        """Weights or corruption masks have changed."""
        self._waiting, self._found = [], {}

    @contextmanager
    def during(self, requests: Sequence[ScoreRequest]) -> Iterator[None]:
        """Score what is new in `requests` beside the block where a core is free; otherwise keep them for later."""
        known = {*self._found, *(_key(r, unit) for r in self._waiting for unit in r.units)}
        for request in requests:
            new = [unit for unit in request.units if _key(request, unit) not in known]
            if new:
                self._waiting.append(replace(request, units=new))
        if not self._waiting or not has_free_core():
            yield
            return
        # A new thread would start with as many threads as there are cores, and round differently.
        same = {"initializer": torch.set_num_threads, "initargs": (torch.get_num_threads(),)}
        with ThreadPoolExecutor(max_workers=1, **same) as pool:
            jobs = [pool.submit(self._work, request) for request in self._waiting]
            self._waiting = []
            try:
                yield
            except BaseException:  # the step is given up: what has not begun is not worth waiting for
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            for job in jobs:
                job.result()

    def score(self, request: ScoreRequest) -> ResponseStatistics:
        """The results of a request, from those that were announced as far as they contain them."""
        wanted = {_key(request, unit) for unit in request.units}
        for early in list(self._waiting):
            if any(_key(early, unit) in wanted for unit in early.units):
                self._waiting.remove(early)
                self._work(early)
        missing = [unit for unit in request.units if _key(request, unit) not in self._found]
        rest = self._score(replace(request, units=missing)) if missing else None
        if rest is not None and len(missing) == len(request.units):
            return rest
        parts = dict(zip(map(id, missing), _by_unit(rest, missing), strict=True)) if rest is not None else {}
        return _joined([parts.get(id(unit)) or self._found[_key(request, unit)] for unit in request.units])

    def keep(self, request: ScoreRequest, found: ResponseStatistics) -> None:
        """The results of a request, for those who ask for them later in the step."""
        parts = _by_unit(found, request.units)
        self._found |= {_key(request, unit): part for unit, part in zip(request.units, parts, strict=True)}

    def _work(self, request: ScoreRequest) -> None:
        self.keep(request, self._score(request))


def has_free_core() -> bool:
    """Whether another thread would find a core to run on. This process counts for one of the load."""
    cores = usable_cores()
    return cores > 1 and os.getloadavg()[0] < cores


def _key(request: ScoreRequest, unit: PromptWithResponses) -> Key:
    responses = tuple(y.numpy().tobytes() for y in unit.responses)
    return request.view, request.with_similarity, unit.prompt.prompt.id, responses


def _by_unit(found: ResponseStatistics, units: Sequence[PromptWithResponses]) -> list[ResponseStatistics]:
    sizes = [len(unit.responses) for unit in units]
    columns = {name: values.split(sizes) for name, values in vars(found).items() if values is not None}
    return [
        ResponseStatistics(**{name: parts[i] for name, parts in columns.items()}) for i in range(len(units))
    ]


def _joined(parts: Sequence[ResponseStatistics]) -> ResponseStatistics:
    """The rows of all parts, padded to the widest."""
    width = max(part.mask_BT.shape[1] for part in parts)
    known = [name for name, values in vars(parts[0]).items() if values is not None]
    columns = {
        name: torch.cat([pad(getattr(p, name), (0, width - p.mask_BT.shape[1])) for p in parts])
        for name in known
    }
    return ResponseStatistics(**columns)
