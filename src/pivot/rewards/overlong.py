"""DAPO's soft penalty of long responses."""


def overlong_penalty(length: int, longest: int, cache: int) -> float:
    """0 up to `longest - cache` tokens, then linearly down to -1 at `longest` (DAPO, Eq. 13).

    Example:
        overlong_penalty(1792, longest=2048, cache=512) == -0.5
    """
    return -min(1.0, max(0, length - (longest - cache)) / cache)
