"""Metrics by hand."""

import pytest
import torch

from pivot.runs.metrics import replay_gain, unlikely_weight
from pivot.types import Prompt, Response, Reward, RolloutGroup


def test_the_weight_on_unlikely_tokens_by_hand():
    probabilities_BT = torch.tensor([[0.05, 0.5, 0.9], [0.01, 0.2, 0.02]])
    utility_BT = torch.tensor([[-2.0, 1.0, 0.5], [1.0, -1.0, 9.0]])
    mask_BT = torch.tensor([[1, 1, 1], [1, 1, 0]]).bool()
    found = unlikely_weight(probabilities_BT.log(), torch.tensor([1.0, -2.0]), utility_BT, mask_BT)
    # (1 - p) |A U|: 1.9, 0.5, 0.05 and 1.98, 1.6; the first of each row has p < 0.1, and the last is padding.
    assert found == pytest.approx((1.9 + 1.98) / (1.9 + 0.5 + 0.05 + 1.98 + 1.6), rel=1e-5)
    # Nothing added, nothing to share out.
    assert unlikely_weight(probabilities_BT.log(), torch.zeros(2), utility_BT, mask_BT) == 0.0


def group(*rewards: float, replayed: bool) -> RolloutGroup:
    responses = [
        Response(torch.tensor([1]), "", None, None, False, Reward(value, 1.0, "")) for value in rewards
    ]
    return RolloutGroup(Prompt("id", "?", (), "1"), responses, replayed=replayed)


def test_the_gain_of_replay_by_hand():
    fresh = [group(0, 0, replayed=False), group(1, 1, replayed=False), group(0, 1, replayed=False)]
    replayed = [group(1, 0, replayed=True)]
    found = replay_gain([*fresh, *replayed])
    assert found["buffer/informative_fresh"] == pytest.approx(1 / 3)
    assert found["buffer/informative_replayed"] == 1
    # Four groups gave two informative ones; four fresh groups would have given 4/3.
    assert found["buffer/replay_gain"] == pytest.approx((2 - 4 / 3) / 4)
    assert replay_gain(fresh) == {}
    assert replay_gain(replayed) == {}
