"""The exception for a user's mistake."""


class UserError(Exception):
    """One sentence: what was given, what was expected, what to do. The command prints it and exits with code 2."""
