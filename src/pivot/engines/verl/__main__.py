"""`python -m pivot.engines.verl SETTING=VALUE ...`: verl's `main_ppo`, once it is sure that the plug-in is there."""

from __future__ import annotations

import sys


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
    main_ppo()
    return 0


if __name__ == "__main__":
    sys.exit(main())
