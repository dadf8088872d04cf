"""The verifier: accuracy and format rewards for untrusted model output, bounded in time and memory."""

from .box import Box, follows_template, last_box
from .check import check_answer
from .reason import Reason
from .verifier import Verifier

__all__ = ["Box", "Reason", "Verifier", "check_answer", "follows_template", "last_box"]
