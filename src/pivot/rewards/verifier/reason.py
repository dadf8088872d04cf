"""Why a response got the reward it got."""

from enum import StrEnum


class Reason(StrEnum):
    """The verifier's outcomes; each is also the string that `Reward.reason` and `pivot grade` show."""

    CORRECT = "correct"
    WRONG = "wrong"
    NO_BOX = "no box"
    """The response holds no `\\boxed{...}` whose braces are balanced."""
    UNPARSABLE = "unparsable"
    """The box is empty, or what is in it goes beyond the bounds of exact arithmetic (a giant power)."""
    TIMED_OUT = "timed out"
    """The library did not answer before the deadline; its process was killed and replaced."""
    TOO_LONG = "too long"
    """The last box holds more than `MAX_BOX_CHARS` characters."""
