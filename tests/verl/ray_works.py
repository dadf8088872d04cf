"""Whether a plain local Ray runs here at all, without any code of this project: `make test-verl` needs it.

Exit code 0: a trivial task ran. Anything else, after at most three minutes: it did not.
"""

import faulthandler
import os
import secrets
import shutil
import sys
import tempfile

LIMIT = 180
NEED_GB = 6
"""Ten small processes with torch in each."""


def main() -> int:
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    meminfo = "/proc/meminfo"
    if os.path.exists(meminfo):
        with open(meminfo, encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        available = int(lines["MemAvailable"].split()[0]) * 1024
    if available < NEED_GB * 2**30:
        print(f"{available / 2**30:.1f} GB of memory are free, {NEED_GB} are needed", file=sys.stderr)
        return 1
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Else Ray would write one into a home folder that may not be there.
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    import ray

    folder = tempfile.mkdtemp(prefix="pivot-", dir="/tmp")
    try:
        ray.init(
            num_cpus=1,
            include_dashboard=False,
            object_store_memory=100_000_000,
            _temp_dir=folder,
            _node_ip_address="127.0.0.1",
        )
        return 0 if ray.get(ray.remote(lambda: 42).remote(), timeout=LIMIT) == 42 else 1
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
