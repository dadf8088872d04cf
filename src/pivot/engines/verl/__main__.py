"""`python -m pivot.engines.verl SETTING=VALUE ...`: verl's `main_ppo`, after checking that the plug-in is loaded."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from pivot.engines.verl.child import PARENT


def main() -> int:
    """verl's own entry point, with its own command line."""
    import verl  # noqa: F401 - loads the plug-in
    from verl.trainer.main_ppo import main as main_ppo

    from pivot.engines.verl import plugin

    if absent := plugin.missing():
        print(
            f"pivot is not registered with verl: {', '.join(absent)} missing; `python -c 'import "
            f"pivot.engines.verl.trainer'` with {plugin.SWITCH}=1 shows why",
            file=sys.stderr,
        )
        return 2
    end_with_parent()
    main_ppo()
    return 0


def end_with_parent() -> None:
    """End this process if `pivot train` was killed; the run can be resumed."""
    parent = int(os.environ.get(PARENT, "0"))

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGTERM)

    if parent:
        threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
