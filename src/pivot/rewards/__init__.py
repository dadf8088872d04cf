"""Rewards: the verifier, reward functions in their own process."""
