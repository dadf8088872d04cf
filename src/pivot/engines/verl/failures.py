"""Why a run ended, in one sentence: a process that died is named, not just the call that noticed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from pivot.errors import UserError

PATIENCE = 10.0
"""Seconds to wait for signs of life; a process that is busy is not dead."""


def explain(error: BaseException, actors: Mapping[str, Any]) -> str:
    """The reason for run.json.

    Args:
        actors: the run's processes by what a person calls them, e.g. `rank 0 (process 4711)`.
    """
    dead = _dead(actors) if isinstance(error, RayError) else []
    if dead:
        are = "has died" if len(dead) == 1 else "have died"
        return (
            f"{', '.join(dead)} {are}, killed from outside or for want of memory; the last checkpoint is good, "
            "go on with --resume"
        )
    cause = vars(error).get("cause")
    if isinstance(cause, Exception):
        return explain(cause, {})
    if isinstance(error, UserError):
        return str(error)
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else 'no reason given'}"


def _dead(actors: Mapping[str, Any]) -> list[str]:
    calls = {name: actor.__ray_ready__.remote() for name, actor in actors.items()}
    waiting = list(calls.values())
    ray.wait(waiting, num_returns=len(waiting), timeout=PATIENCE)
    return [name for name, call in calls.items() if _failed(call)]


def _failed(call: Any) -> bool:
    try:
        ray.get(call, timeout=0.1)
    except GetTimeoutError:
        return False
    except RayActorError:
        return True
    return False
