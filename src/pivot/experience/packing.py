"""The stored responses of a prompt in three arrays, so that memory stays close to the bytes of the token ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pivot.experience.records import StoredResponse

RECORD = np.dtype(
    [
        ("length", np.int32),
        ("has_logprobs", np.bool_),
        ("step", np.int32),
        ("scored_step", np.int32),
        ("serial", np.int64),
        ("entropy", np.float64),
        ("dependency", np.float64),
        ("accuracy", np.float32),
        ("format", np.float32),
    ]
)
"""A response without its tokens; NaN means that a score or reward is unknown."""
SINCE_VERSION_2 = ("accuracy", "format")
"""Columns that the first file format lacks."""


class PackedResponses:
    """The stored responses of one prompt, oldest first; never changed in place, so that snapshots may share them."""

    __slots__ = ("logprobs", "records", "token_ids")

    def __init__(self, token_ids: np.ndarray, logprobs: np.ndarray | None, records: np.ndarray) -> None:
        self.token_ids = token_ids
        """int32, concatenated."""
        self.logprobs = logprobs
        """float32, concatenated over the responses that have any; None if none has."""
        self.records = records

    @classmethod
    def pack(cls, responses: Sequence[StoredResponse]) -> PackedResponses:
        records = np.empty(len(responses), dtype=RECORD)
        for index, response in enumerate(responses):
            numbers = (response.entropy, response.dependency, response.accuracy, response.format)
            records[index] = (
                len(response),
                response.logprobs is not None,
                response.step,
                response.scored_step,
                response.serial,
                *(np.nan if number is None else number for number in numbers),
            )
        logprobs = [response.logprobs for response in responses if response.logprobs is not None]
        return cls(
            np.concatenate([response.token_ids for response in responses]),
            np.concatenate(logprobs) if logprobs else None,
            records,
        )

    def unpack(self) -> list[StoredResponse]:
        """The responses as views of the packed arrays."""
        responses, token, logprob = [], 0, 0
        for length, has_logprobs, step, scored_step, serial, *numbers in self.records.tolist():
            logprobs = None
            if has_logprobs:
                assert self.logprobs is not None
                logprobs = self.logprobs[logprob : logprob + length]
                logprob += length
            token_ids = self.token_ids[token : token + length]
            entropy, dependency, accuracy, form = (None if n != n else n for n in numbers)
            responses.append(
                StoredResponse(
                    token_ids, logprobs, entropy, dependency, accuracy, form, step, scored_step, serial
                )
            )
            token += length
        return responses

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        logprobs = 0 if self.logprobs is None else self.logprobs.nbytes
        return self.token_ids.nbytes + self.records.nbytes + logprobs

    def __len__(self) -> int:
        return len(self.records)


NOTHING = PackedResponses(np.empty(0, dtype=np.int32), None, np.empty(0, dtype=RECORD))
"""No responses: a row that is about to get its first one, or to be removed."""


def surviving_responses(responses: Sequence[StoredResponse], limit: int) -> list[StoredResponse]:
    """The last `limit` distinct responses of a list that is ordered from oldest to newest.

    Of two responses with equal token ids the later one is kept: the policy has just sampled it again, and its
    log-probs and scores belong to that moment. The oldest is thus the one not sampled for the longest time.
    """
    latest: dict[bytes, StoredResponse] = {}
    for response in responses:
        key = response.token_ids.tobytes()
        latest.pop(key, None)
        latest[key] = response
    return list(latest.values())[-limit:]


def flatten(packs: Sequence[PackedResponses]) -> dict[str, np.ndarray]:
    """The packs of all prompts as a few long arrays, with the number of responses per prompt."""
    records = np.concatenate([np.empty(0, dtype=RECORD), *(pack.records for pack in packs)])
    columns = {f"response.{name}": np.ascontiguousarray(records[name]) for name in RECORD.names or ()}
    logprobs = (pack.logprobs for pack in packs if pack.logprobs is not None)
    return {
        **columns,
        "num_stored": np.array([len(pack) for pack in packs], dtype=np.int64),
        "token_ids": np.concatenate([np.empty(0, dtype=np.int32), *(pack.token_ids for pack in packs)]),
        "logprobs": np.concatenate([np.empty(0, dtype=np.float32), *logprobs]),
    }


def unflatten(columns: dict[str, np.ndarray]) -> list[PackedResponses]:
    """The inverse of `flatten`. Every prompt gets its own arrays, so that removing it frees them."""
    records = np.empty(len(columns["response.length"]), dtype=RECORD)
    for name in RECORD.names or ():
        is_old_file = name in SINCE_VERSION_2 and f"response.{name}" not in columns
        records[name] = np.nan if is_old_file else columns[f"response.{name}"]
    lengths = records["length"].astype(np.int64)
    ends = np.cumsum(columns["num_stored"])
    token_ends = _ends_of_prompts(lengths, ends)
    logprob_ends = _ends_of_prompts(np.where(records["has_logprobs"], lengths, 0), ends)
    packs, start, token, logprob = [], 0, 0, 0
    for end, token_end, logprob_end in zip(
        ends.tolist(), token_ends.tolist(), logprob_ends.tolist(), strict=True
    ):
        token_ids = columns["token_ids"][token:token_end].copy()
        logprobs = columns["logprobs"][logprob:logprob_end].copy() if logprob_end > logprob else None
        packs.append(PackedResponses(token_ids, logprobs, records[start:end].copy()))
        start, token, logprob = end, token_end, logprob_end
    return packs


def _ends_of_prompts(sizes: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Where the numbers of each prompt end, given the size of each response and where each prompt's responses end."""
    return np.concatenate([[0], np.cumsum(sizes)])[ends]
