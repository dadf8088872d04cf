"""What verl loads through its entry point `verl.plugins`, in the driver and in every worker.

It does nothing unless `pivot train --engine verl` started the process, so other runs of verl are not affected.
verl hides errors while a plug-in loads; `missing` lists what was not registered.
"""

from __future__ import annotations

import os

SWITCH = "PIVOT_VERL"
TRAINER = "pivot"
"""Name of the trainer and of the CPU rollout in verl's registries."""


def register() -> None:
    """Register everything with verl's own registries."""
    from verl.workers.rollout import base
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    on_cpu = os.environ.get("VERL_PLATFORM") == "cpu"
    if on_cpu:
        from pivot.engines.verl import platform

        platform.use_gloo()
        _register_engine()
    base._ROLLOUT_REGISTRY[TRAINER, "async"] = "pivot.engines.verl.replica.WeightSender"
    RolloutReplicaRegistry.register(TRAINER, _load_replica)
    from pivot.engines.verl import trainer  # noqa: F401 - registers itself


def missing() -> list[str]:
    """What should be registered and is not."""
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
    from verl.workers.engine import EngineRegistry
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    found = {
        "the trainer": TRAINER in TRAINER_REGISTRY,
        "the rollout replica": TRAINER in RolloutReplicaRegistry._registry,
    }
    if os.environ.get("VERL_PLATFORM") == "cpu":
        found["the FSDP2 engine on CPUs"] = "cpu" in EngineRegistry._engines["language_model"]["fsdp2"]
    return [name for name, there in found.items() if not there]


def _register_engine() -> None:
    from verl.workers.engine import EngineRegistry
    from verl.workers.engine.fsdp import FSDPEngineWithLMHead

    if "cpu" not in EngineRegistry._engines["language_model"]["fsdp2"]:
        EngineRegistry.register(model_type="language_model", backend=["fsdp2"], device="cpu")(
            FSDPEngineWithLMHead
        )


def _load_replica() -> type:
    from pivot.engines.verl.replica import PivotReplica

    return PivotReplica


if os.environ.get("VERL_PLATFORM") == "cpu" and os.environ.get(SWITCH):
    from pivot.engines.verl import platform  # noqa: F401 - verl needs it while it is imported
if os.environ.get(SWITCH):
    register()
