"""Reward functions of a user."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_rewards_can_be_imported(monkeypatch):
    """`own_rewards.py` beside the tests, as a user's module would be on the path."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
