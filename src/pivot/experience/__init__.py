"""Selective experience replay (SER): which prompts to sample again, and the responses that solved them.

Start with `buffer.py`. `replay.py` decides what is drawn and when replay starts, `groups.py` keeps whole groups for the
methods that replay them, `packing.py` stores responses compactly, `storage.py` is the file.
"""

from pivot.experience.buffer import ExperienceBuffer
from pivot.experience.groups import GroupStore, StoredGroup
from pivot.experience.records import BufferRow, BufferStats, Draw, StoredResponse
from pivot.experience.replay import ReplayGate

__all__ = [
    "BufferRow",
    "BufferStats",
    "Draw",
    "ExperienceBuffer",
    "GroupStore",
    "ReplayGate",
    "StoredGroup",
    "StoredResponse",
]
