"""The engine options of `pivot train`: `--engine verl` and its settings."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pivot.errors import UserError

if TYPE_CHECKING:
    from pivot.config import Config
    from pivot.runs.resuming import Accept
    from pivot.runs.run import RunResult

OPTIONS = ("nodes", "gpus", "address", "restarts", "rollout", "verl", "dry-run")
"""Options that only verl has."""
CHANGEABLE = ("nodes", "gpus", "address", "restarts")
"""Those that a resumed run may change: a checkpoint fits any number of ranks."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where it runs (docs/cluster.md)")
    group.add_argument(
        "--engine",
        default="local",
        metavar="NAME",
        help="`local` (default): this process; `verl`: Ray, FSDP2 and vLLM on one node or many; or one that a "
        "--plugin registers",
    )
    group.add_argument("--nodes", type=int, metavar="N", help="nodes of the cluster (default: 1)")
    group.add_argument(
        "--gpus", type=int, metavar="M", help="ranks per node: GPUs, or processes on CPUs (default: 1)"
    )
    group.add_argument(
        "--address", metavar="HOST:PORT", help="a running Ray cluster, or `auto`; default: a local one"
    )
    group.add_argument(
        "--restarts",
        type=int,
        metavar="K",
        help="after a process or node has died, go on from the last checkpoint up to K times (default: 0)",
    )
    group.add_argument(
        "--rollout", choices=["vllm", "sglang"], help="the rollout server on GPUs (default: vllm)"
    )
    group.add_argument(
        "--verl",
        action="append",
        default=[],
        metavar="A.B=C",
        help="a setting for verl itself; may be repeated",
    )
    group.add_argument("--dry-run", action="store_true", help="print what would be started and exit")


def is_asked(args: argparse.Namespace, resumed: Path | None) -> bool:
    """Whether verl is the engine: by option, or because the resumed run used it."""
    if resumed is not None:
        from pivot.engines.verl.launch import saved_options

        used_verl = saved_options(resumed) is not None
        fixed = [name for name in OPTIONS if not (used_verl and name in CHANGEABLE)]
        given = [name for name in fixed if vars(args)[name.replace("-", "_")]]
        given += ["engine verl"] * (args.engine == "verl" and not used_verl)
        if given:
            raise UserError(
                f"{resumed} runs on its own engine, nodes and settings; leave out --{', --'.join(given)}"
            )
        return used_verl
    if args.engine == "verl":
        return True
    for name in OPTIONS:
        if vars(args)[name.replace("-", "_")]:
            raise UserError(f"--{name} needs --engine verl; the {args.engine} engine is one process")
    return False


def run(args: argparse.Namespace, out: Path, config: Config | None, accept: Accept) -> RunResult | None:
    """Start a run or, without a configuration, resume one; None after `--dry-run`."""
    from pivot.engines.verl import launch
    from pivot.engines.verl.compose import ClusterOptions

    for name, least in (("nodes", 1), ("gpus", 1), ("restarts", 0)):
        if getattr(args, name) is not None and getattr(args, name) < least:
            raise UserError(f"--{name} must be at least {least}, got {getattr(args, name)}")
    if config is None:
        changes = {name: vars(args)[name] for name in CHANGEABLE if vars(args)[name] is not None}
        return launch.resume(out, quiet=args.quiet, accept=accept, changes=changes)
    if config.sampling.engine != "auto" or config.sampling.importance_cap is not None:
        raise UserError(
            "the sampling section is the local engine's; --engine verl samples by --rollout: leave --sampler and "
            "sampling.* out"
        )
    cluster = ClusterOptions(
        args.nodes or 1, args.gpus or 1, args.address, args.rollout, tuple(args.verl), args.restarts or 0
    )
    if args.dry_run:
        print(launch.describe(config, out, cluster))
        return None
    return launch.train(config, out, cluster, quiet=args.quiet)
