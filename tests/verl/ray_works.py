"""Whether a plain local Ray and a plain gloo group run here at all, without any code of this project.

`make test-verl` needs both. Exit code 0: they do. Anything else, after at most a few minutes: they do not.
"""

import faulthandler
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT = 180
NEED_GB = 6
"""Ten small processes with torch in each."""
GLOO = """
import sys, torch
from torch import distributed
distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=int(sys.argv[2]), world_size=2)
total = torch.ones(1)
distributed.all_reduce(total)
sys.exit(total.item() != 2)
"""


def enough_memory() -> bool:
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return True
    lines = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
    available = int(lines["MemAvailable"].split()[0]) * 1024
    print(f"{available / 2**30:.1f} GB of memory are free, {NEED_GB} are needed", file=sys.stderr)
    return available >= NEED_GB * 2**30


def gloo_works(folder: str) -> bool:
    command = [sys.executable, "-c", GLOO, f"{folder}/meeting"]
    ranks = [subprocess.Popen([*command, str(rank)]) for rank in range(2)]
    try:
        return [rank.wait(LIMIT) for rank in ranks] == [0, 0]
    except subprocess.TimeoutExpired:
        return False
    finally:
        for rank in ranks:
            rank.kill()


def ray_works(folder: str) -> bool:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Else Ray would write one into a home folder that may not be there.
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    import ray

    try:
        ray.init(
            num_cpus=1,
            include_dashboard=False,
            object_store_memory=100_000_000,
            _temp_dir=folder,
            _node_ip_address="127.0.0.1",
        )
        return ray.get(ray.remote(lambda: 42).remote(), timeout=LIMIT) == 42
    finally:
        ray.shutdown()


def main() -> int:
    faulthandler.dump_traceback_later(3 * LIMIT, exit=True)
    folder = tempfile.mkdtemp(prefix="pivot-", dir="/tmp")
    try:
        return 0 if enough_memory() and gloo_works(folder) and ray_works(folder) else 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
