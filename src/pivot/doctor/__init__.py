"""Inspects a machine and estimates whether a configuration fits it. Nothing is loaded or downloaded."""

from pivot.doctor.advice import Verdict, judge
from pivot.doctor.machine import OTHER, Device, Machine, inspect_machine
from pivot.doctor.memory import Estimate, Item, estimate
from pivot.models.architecture import Architecture, find_architecture

__all__ = [
    "OTHER",
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
