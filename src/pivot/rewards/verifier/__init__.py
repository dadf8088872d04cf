"""The verifier: accuracy and format rewards for untrusted model output, bounded in time and memory."""

from .answers import answer_finder, follows_template
from .pool import Reason
from .reading import read_choices
from .response import Box, last_box
from .verifier import GRADERS, Verifier, check_answer

__all__ = [
    "GRADERS",
    "Box",
    "Reason",
    "Verifier",
    "answer_finder",
    "check_answer",
    "follows_template",
    "last_box",
    "read_choices",
]
