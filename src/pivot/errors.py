"""The one exception for a user's mistake."""


class UserError(Exception):
    """One clear sentence: what was given, what was expected, what to do. The command prints it and exits 2."""
