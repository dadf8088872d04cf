"""Which responses of a prompt and which rows are removed first, by hand."""

import numpy as np

from pivot.experience import StoredResponse
from pivot.experience.buffer import lightest_row
from pivot.experience.packing import surviving_responses


def stored(serial: int, *token_ids: int) -> StoredResponse:
    return StoredResponse(np.array(token_ids), serial=serial, step=serial)


def serials(responses: list[StoredResponse]) -> list[int]:
    return [response.serial for response in responses]


def test_oldest_responses_go_first():
    assert serials(surviving_responses([stored(0, 1), stored(1, 2), stored(2, 3)], limit=2)) == [1, 2]


def test_of_equal_responses_the_later_stays_and_is_the_youngest():
    kept = surviving_responses([stored(0, 5, 6), stored(1, 7), stored(2, 5, 6), stored(3, 8)], limit=2)
    assert serials(kept) == [2, 3]


def test_a_prefix_is_a_different_response():
    assert serials(surviving_responses([stored(0, 5), stored(1, 5, 6)], limit=8)) == [0, 1]


def test_the_lightest_row_goes_and_of_equal_ones_the_longest_unvisited():
    weights = np.array([0.25, 0.0, 0.1875, 0.0, 0.0])
    touched = np.array([0, 9, 2, 4, 7])
    assert lightest_row(weights, touched) == 3
