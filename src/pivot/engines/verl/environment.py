"""What a run on verl imports, on the driver and on every node. Needs no verl."""

from __future__ import annotations

import importlib
from importlib.util import find_spec

from pivot.errors import UserError

NEEDED = {
    "accelerate": "accelerate",
    "cachetools": "cachetools",
    "datasets": "datasets",
    "hydra": "hydra-core",
    "jinja2": "jinja2",
    "math_verify": "math-verify",
    "mathruler": "mathruler",
    "matplotlib": "matplotlib",
    "msgspec": "msgspec",
    "omegaconf": "omegaconf",
    "peft": "peft",
    "PIL": "pillow",
    "pyarrow": "pyarrow",
    "pylatexenc": "pylatexenc",
    "ray": "ray",
    "regex": "regex",
    "rich": "rich",
    "safetensors": "safetensors",
    "sympy": "sympy",
    "tensordict": "tensordict",
    "torchdata": "torchdata",
    "transfer_queue": "TransferQueue",
    "transformers": "transformers",
    "verl": "verl",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}
"""Module -> its distribution."""
INSTALL = "docs/cluster.md has the commands; `make .venv-verl/.ready` builds the environment its tests run in"


def check_found(server: str | None = None) -> None:
    """Raise a UserError that names what is not installed here; `server` is the rollout server's module, if any."""
    _refuse("here", [_distribution(module) for module in _modules(server) if find_spec(module) is None])


def check_imports(where: str, server: str | None = None) -> None:
    """Raise a UserError that names what cannot be imported in this process, each with its reason."""
    _refuse(where, broken_imports(server))


def broken_imports(server: str | None = None) -> list[str]:
    """Distributions that cannot be imported; one that is installed but broken with the reason."""
    broken = []
    for module in _modules(server):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as missing:
            own = missing.name == module
            broken.append(_distribution(module) if own else f"{_distribution(module)} ({missing})")
        except (ImportError, OSError) as damage:
            broken.append(f"{_distribution(module)} ({str(damage).strip().splitlines()[0]})")
    return broken


def check_nodes(server: str | None = None) -> None:
    """The same on every other node of the Ray cluster that this process belongs to."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    others = {
        n["NodeID"]: n["NodeManagerHostname"] for n in ray.nodes() if n["Alive"] and n["NodeID"] != here
    }
    remote = ray.remote(num_cpus=0)(broken_imports)
    calls = {
        name: remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
            server
        )
        for node, name in others.items()
    }
    for name, call in calls.items():
        _refuse(f"on the node {name}", ray.get(call))


def _modules(server: str | None) -> list[str]:
    return [*NEEDED, *([] if server is None else [server])]


def _distribution(module: str) -> str:
    return NEEDED.get(module, module)


def _refuse(where: str, missing: list[str]) -> None:
    if missing:
        raise UserError(
            f"--engine verl needs {', '.join(missing)}, which cannot be imported {where}; verl needs an environment of "
            f"its own: {INSTALL}"
        )
