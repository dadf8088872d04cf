"""What goes into the buffer and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False, slots=True)
class StoredResponse:
    """One successful response of a prompt, as token ids, never as text.

    Example:
        StoredResponse(token_ids=[151, 9, 2], logprobs=[-0.1, -0.7, 0.0], entropy=0.3, dependency=0.4)
    """

    token_ids: np.ndarray
    """int32, one-dimensional, not empty. Lists, int64 arrays and CPU tensors are converted."""
    logprobs: np.ndarray | None = None
    """float32, one per token: log-probs under the weights that sampled it (Off-PG's denominator)."""
    entropy: float | None = None
    """H(y), Eq. 5, as last computed."""
    dependency: float | None = None
    """V(y), Eq. 4, as last computed."""
    accuracy: float | None = None
    """The accuracy reward; None if unknown."""
    format: float | None = None
    """The format reward; None if unknown."""
    step: int = -1
    """The step in which it was sampled; set by the buffer."""
    scored_step: int = -1
    """The step whose weights computed `entropy` and `dependency`; set by the buffer."""
    serial: int = -1
    """A running number over all responses ever recorded; set by the buffer."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_ids", _as_token_ids(self.token_ids))
        if self.logprobs is not None:
            object.__setattr__(self, "logprobs", _as_logprobs(self.logprobs, len(self.token_ids)))

    @property
    def is_scored(self) -> bool:
        """Whether H and V are known."""
        return self.entropy is not None and self.dependency is not None

    def __len__(self) -> int:
        return len(self.token_ids)


_LARGEST_ID = 2**31 - 1


def _as_token_ids(token_ids: object) -> np.ndarray:
    ids = np.asarray(token_ids)
    if ids.ndim != 1 or ids.size == 0:
        raise ValueError(f"token_ids must be one-dimensional and not empty, got shape {ids.shape}")
    if ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() > _LARGEST_ID:
        raise ValueError(f"token_ids must be integers from 0 to 2**31 - 1, got {ids}")
    return np.ascontiguousarray(ids, dtype=np.int32)


def _as_logprobs(logprobs: object, num_tokens: int) -> np.ndarray:
    values = np.ascontiguousarray(logprobs, dtype=np.float32)
    if values.shape != (num_tokens,):
        raise ValueError(
            f"logprobs must have one number per token, ({num_tokens},), got shape {values.shape}"
        )
    return values


@dataclass(frozen=True, slots=True)
class Draw:
    """A prompt drawn for replay, and why it was drawn."""

    prompt_id: str
    probability: float
    """Eq. 6 over the rows eligible at the time of the draw: p(1-p) divided by its sum."""
    age: int
    """Steps since the success rate was recorded."""
    times_drawn: int
    """How often the row has been drawn, including this draw."""
    success_rate: float
    """p-hat."""


@dataclass(frozen=True, slots=True)
class BufferRow:
    """The state of one prompt, without its responses."""

    prompt_id: str
    num_correct: int
    num_sampled: int
    step: int
    """The step in which the success rate was recorded."""
    times_drawn: int
    num_stored: int
    """Number of stored responses."""

    @property
    def success_rate(self) -> float:
        """p-hat = k/G of the latest group."""
        return self.num_correct / self.num_sampled

    @property
    def weight(self) -> float:
        """p(1-p), Eq. 6 before normalisation."""
        return self.num_correct * (self.num_sampled - self.num_correct) / self.num_sampled**2


@dataclass(frozen=True, slots=True)
class BufferStats:
    """A summary of the buffer."""

    size: int
    """Number of rows."""
    eligible: int
    """Rows with 0 < p-hat < 1; the others are not drawn."""
    responses: int
    bytes: int
    """Size of token ids, log-probs, records, table and prompt ids, without Python's overhead."""
    success_histogram: tuple[int, ...]
    """Rows by p-hat in ten equal bins; the last one includes 1."""
    oldest_step: int | None
    """The earliest step in which a current success rate was recorded; None for an empty buffer."""
    newest_step: int | None
    mean_age: float
    """Mean steps since the success rates were recorded."""
    draws: int
    """Total number of draws of the rows that are still in the buffer."""
