"""A reward that is not the same for all responses of a group."""


def by_length(completions, **columns):
    return [float(len(text) % 2) for text in completions]
