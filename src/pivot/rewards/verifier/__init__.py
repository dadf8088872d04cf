"""The verifier: accuracy and format rewards for untrusted model output, bounded in time and memory."""

from .pool import Reason
from .response import Box, follows_template, last_box
from .verifier import GRADERS, Verifier, check_answer

__all__ = [
    "GRADERS",
    "Box",
    "Reason",
    "Verifier",
    "check_answer",
    "follows_template",
    "last_box",
]
