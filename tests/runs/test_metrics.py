"""Metrics by hand."""

import pytest
import torch

from pivot.runs.metrics import unlikely_weight


def test_the_weight_on_unlikely_tokens_by_hand():
    probabilities_BT = torch.tensor([[0.05, 0.5, 0.9], [0.01, 0.2, 0.02]])
    utility_BT = torch.tensor([[-2.0, 1.0, 0.5], [1.0, -1.0, 9.0]])
    mask_BT = torch.tensor([[1, 1, 1], [1, 1, 0]]).bool()
    found = unlikely_weight(probabilities_BT.log(), torch.tensor([1.0, -2.0]), utility_BT, mask_BT)
    # (1 - p) |A U|: 1.9, 0.5, 0.05 and 1.98, 1.6; the first of each row has p < 0.1, and the last is padding.
    assert found == pytest.approx((1.9 + 1.98) / (1.9 + 0.5 + 0.05 + 1.98 + 1.6), rel=1e-5)
    # Nothing added, nothing to share out.
    assert unlikely_weight(probabilities_BT.log(), torch.zeros(2), utility_BT, mask_BT) == 0.0
