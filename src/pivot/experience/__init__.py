"""Selective experience replay's memory (SER): which prompts to visit again, and what once solved them.

Read `buffer.py` first. What is drawn (`sampler.py`), what is thrown out (`eviction.py`) and when replay
starts (`gate.py`) are three separate things; `storage.py` is the file.
"""

from pivot.experience.buffer import ExperienceBuffer
from pivot.experience.gate import ReplayGate
from pivot.experience.records import BufferRow, BufferStats, Draw, StoredResponse

__all__ = ["BufferRow", "BufferStats", "Draw", "ExperienceBuffer", "ReplayGate", "StoredResponse"]
