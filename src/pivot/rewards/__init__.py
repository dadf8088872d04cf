"""Rewards: the verifier, and reward functions of your own in a separate process."""
