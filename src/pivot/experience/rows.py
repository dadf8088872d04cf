"""The rows' numbers as columns: one array a field, so that a draw is a few passes over contiguous memory."""

from __future__ import annotations

import numpy as np

STORED = {
    "num_correct": np.int32,
    "num_sampled": np.int32,
    "step": np.int64,
    "touched": np.int64,
    "times_drawn": np.int64,
}
"""A row: k and G of the latest visit, its step, its place in the order of visits, how often it was drawn."""


class RowColumns:
    """Columns that grow at the end and close a gap with their last row.

    `weights` is p(1-p), kept beside the truth it follows from (`num_correct`, `num_sampled`) because a draw
    reads all of it; it is never saved.
    """

    def __init__(self, columns: dict[str, np.ndarray] | None = None) -> None:
        source = columns or {name: np.empty(0, dtype=dtype) for name, dtype in STORED.items()}
        self._columns = {name: source[name].astype(dtype) for name, dtype in STORED.items()}
        self._size = len(self._columns["step"])
        self._weights = _weight(self._columns["num_correct"], self._columns["num_sampled"])

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, name: str) -> np.ndarray:
        """A column, as a view."""
        return self._columns[name][: self._size]

    @property
    def weights(self) -> np.ndarray:
        return self._weights[: self._size]

    def append(self) -> int:
        """Add a row of zeros, to be `visit`ed at once; returns its index."""
        if self._size == len(self._weights):
            capacity = max(64, self._size * 3 // 2)
            self._columns = {name: _grown(column, capacity) for name, column in self._columns.items()}
            self._weights = _grown(self._weights, capacity)
        for column in (*self._columns.values(), self._weights):
            column[self._size] = 0
        self._size += 1
        return self._size - 1

    def visit(self, row: int, *, num_correct: int, num_sampled: int, step: int, touched: int) -> None:
        """Overwrite a row's success rate by that of its latest visit."""
        self._columns["num_correct"][row] = num_correct
        self._columns["num_sampled"][row] = num_sampled
        self._columns["step"][row] = step
        self._columns["touched"][row] = touched
        self._weights[row] = _weight(num_correct, num_sampled)

    def remove(self, row: int) -> None:
        """Drop a row; the last one takes its index."""
        last = self._size - 1
        for column in (*self._columns.values(), self._weights):
            column[row] = column[last]
        self._size = last

    def state(self) -> dict[str, np.ndarray]:
        """Copies of the stored columns."""
        return {name: self[name].copy() for name in STORED}

    @property
    def nbytes(self) -> int:
        """Bytes of the rows, without the room to grow."""
        return self.weights.nbytes + sum(self[name].nbytes for name in STORED)


def _weight(num_correct: np.ndarray | int, num_sampled: np.ndarray | int) -> np.ndarray:
    """p(1-p) = k(G-k)/G^2: exactly 0 for k = 0 and k = G."""
    correct, sampled = np.asarray(num_correct, dtype=np.float64), np.asarray(num_sampled, dtype=np.float64)
    return correct * (sampled - correct) / (sampled * sampled)


def _grown(column: np.ndarray, capacity: int) -> np.ndarray:
    grown = np.zeros(capacity, dtype=column.dtype)
    grown[: len(column)] = column
    return grown
