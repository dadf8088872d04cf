"""Which nodes of a running Ray cluster can take ranks now. Ray is asked in a process of its own.

`python -m pivot.engines.verl.nodes ADDRESS RANKS` prints how many nodes have that many free GPUs.
"""

from __future__ import annotations

import subprocess
import sys

from pivot.errors import UserError

PATIENCE = 60.0
"""Seconds for a node to answer and for the GPUs of a run that has just ended to be free."""


def count_nodes(address: str, ranks: int) -> int:
    """Nodes that answer and have room for this many ranks; one that died may still be listed, but does not answer."""
    command = [sys.executable, "-W", "ignore", "-P", "-m", __name__, address, str(ranks)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    last = done.stdout.strip().rpartition("\n")[2]
    if done.returncode or not last.isdecimal():
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise UserError(
            f"the Ray cluster at {address} does not answer ({lines[-1] if lines else 'no reason given'}); start it "
            "with `ray start`, or set another --address"
        )
    return int(last)


def main(address: str, ranks: str) -> None:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.init(address=address, log_to_driver=False, configure_logging=False)
    large = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU", 0) >= int(ranks)]
    probe = ray.remote(num_cpus=0, num_gpus=int(ranks), max_retries=0)(_answer)
    calls = [
        probe.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote()
        for node in large
    ]
    done, _ = ray.wait(calls, num_returns=len(calls), timeout=PATIENCE) if calls else ([], [])
    print(sum(_succeeded(call) for call in done))


def _answer() -> bool:
    return True


def _succeeded(call: object) -> bool:
    import ray
    from ray.exceptions import RayError

    try:
        return bool(ray.get(call))
    except RayError:
        return False


if __name__ == "__main__":
    main(*sys.argv[1:])
