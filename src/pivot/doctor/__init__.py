"""What a machine has, and whether a configuration fits it. Nothing is loaded or downloaded."""

from pivot.doctor.advice import Verdict, judge
from pivot.doctor.architecture import Architecture, find_architecture
from pivot.doctor.machine import Device, Machine, inspect_machine
from pivot.doctor.memory import Estimate, Item, estimate

__all__ = [
    "Architecture",
    "Device",
    "Estimate",
    "Item",
    "Machine",
    "Verdict",
    "estimate",
    "find_architecture",
    "inspect_machine",
    "judge",
]
