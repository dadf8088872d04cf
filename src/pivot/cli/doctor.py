"""`pivot doctor [--recipe NAME]`: inspects this machine and estimates whether a recipe fits it."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pivot.cli import early, options
from pivot.errors import UserError

if TYPE_CHECKING:
    from pivot.config import Config
    from pivot.doctor import Architecture, Machine, Verdict
    from pivot.doctor.speed import Hours
    from pivot.engines.verl.compose import ClusterOptions

DOES_NOT_FIT = 1
"""Exit code if the recipe does not fit this machine."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_arguments(parser)
    parser.add_argument(
        "--device",
        metavar="GPU",
        help="estimate for another GPU than this machine's, such as A100-80GB; another name lists all",
    )
    parser.add_argument(
        "--nodes", type=int, metavar="N", help="estimate for --engine verl on N nodes (default: 1)"
    )
    parser.add_argument(
        "--gpus", type=int, metavar="M", help="estimate for --engine verl with M GPUs per node"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def check(args: argparse.Namespace) -> None:
    """Check names and paths before anything heavy is imported."""
    early.check_configuration(args)


def run(args: argparse.Namespace) -> int:
    from pivot.cli import configuring
    from pivot.doctor import Verdict, find_architecture, inspect_machine, judge
    from pivot.doctor.cluster import estimate_cluster
    from pivot.doctor.speed import hours, known_gpu, named_gpu

    machine = inspect_machine()
    asked = any((args.recipe, args.config, args.model, args.method, args.settings, args.device, args.gpus))
    report: dict[str, Any] = {"machine": asdict(machine)}
    lines, fits = _machine_lines(machine), True
    if asked:
        config = configuring.from_arguments(args)
        model = find_architecture(config.model.path)
        device = named_gpu(args.device).device if args.device else machine.device(config.model.device)
        cluster = _cluster(args)
        if cluster is None:
            verdict, gpu = judge(config, model, device), known_gpu(device)
        else:  # hours are those of one GPU
            found = estimate_cluster(config, model, cluster, device)
            verdict, gpu = Verdict(found, device, (), None), None
        fits = verdict.fits
        time = None if gpu is None else hours(config, model, gpu)
        report |= {"model": asdict(model), **_verdict_json(verdict), "hours": time and asdict(time)}
        lines += ["", *_verdict_lines(config, model, verdict), *_time_lines(time)]
    else:
        lines += ["", "`pivot doctor --recipe NAME` estimates whether a recipe fits this machine."]
    print(json.dumps(report, indent=2) if args.json else "\n".join(lines))
    return 0 if fits else DOES_NOT_FIT


def _cluster(args: argparse.Namespace) -> ClusterOptions | None:
    """The ranks of the verl engine; None: the local engine."""
    if args.nodes is None and args.gpus is None:
        return None
    from pivot.engines.verl.compose import ClusterOptions

    cluster = ClusterOptions(1 if args.nodes is None else args.nodes, 1 if args.gpus is None else args.gpus)
    if min(cluster.nodes, cluster.gpus) < 1:
        raise UserError(f"--nodes and --gpus must be at least 1, got {cluster.nodes} and {cluster.gpus}")
    return cluster


def _machine_lines(machine: Machine) -> list[str]:
    from pivot.doctor import OTHER

    lines = [f"{'Python':<14}{machine.python} on {machine.system}, {machine.cores} cores"]
    memory = machine.memory
    lines.append(f"{'memory':<14}{_gib(memory.total_bytes)}, {_gib(memory.free_bytes)} free")
    for index, gpu in enumerate(machine.gpus):
        lines.append(f"{f'GPU {index}':<14}{gpu.name}, {_gib(gpu.total_bytes)}, {_gib(gpu.free_bytes)} free")
    if not machine.gpus:
        lines.append(f"{'GPU':<14}none that torch can use")
    for name, version in machine.libraries.items():
        lines.append(f"{name:<14}{version or 'missing'}")
    for extra, parts in machine.extras.items():
        lines.append(_parts_line(f"[{extra}]", parts, f"pip install 'pivot-rl[{extra}]'"))
    for name, parts in machine.other.items():
        lines.append(_parts_line(name, parts, OTHER[name][1]))
    return lines


def _parts_line(title: str, parts: dict[str, str | None], how: str) -> str:
    """The versions of an optional part, and how to get what is missing of it."""
    missing = [name for name, version in parts.items() if version is None]
    found = ", ".join(f"{name} {version}" for name, version in parts.items() if version)
    state = f"missing {', '.join(missing)}; {how}" if missing else ""
    return f"{title:<14}{'; '.join(part for part in (found, state) if part)}"


def _verdict_lines(config: Config, model: Architecture, verdict: Verdict) -> list[str]:
    """The items, the peak compared with the device, and what to change."""
    from pivot.doctor.advice import LORA_RATE

    lines = [f"Recipe {config.recipe}, method {config.method.name}, {config.model.path} ({model.source})"]
    for item in verdict.estimate.items:
        lines.append(f"  {item.name:<20}{_gib(item.num_bytes):>10}  {item.phase:<8}  {item.note}")
    lines.append(
        f"  {'peak':<20}{_gib(verdict.needed):>10}  always + the largest of rollout, training + update, training + step"
    )
    have = f"{_gib(verdict.usable)} usable of {_gib(verdict.device.total_bytes)} on {verdict.device.name}"
    if verdict.fits:
        return [*lines, f"fits: {_gib(verdict.needed)} needed, {have}."]
    lines.append(f"does not fit: {_gib(verdict.needed)} needed, {have}.")
    if verdict.changes:
        lines.append("What to change, each in addition to those before:")
    for change in verdict.changes:
        lines.append(f"  --set {change.setting:<40}{_gib(change.peak):>10}  {change.why}")
    if any(change.setting.startswith("model.lora_rank") for change in verdict.changes):
        rate = LORA_RATE * config.train.lr
        lines.append(
            f"  --set train.lr={rate:<31.1e}{'':>10}  LoRA learns at about {LORA_RATE} times the rate"
        )
    if verdict.changes:
        lines.append(
            "With all of them it fits." if verdict.fits_with_changes else "Even all of them are not enough."
        )
    if verdict.gpus_needed is None:
        return [*lines, "More GPUs hold smaller shards; a smaller train.micro_batch_tokens leaves more room."]
    size = _gib(verdict.device.total_bytes) if verdict.device.kind == "cuda" else "80 GB"
    lines.append(f"Or: pivot train --engine verl --gpus {verdict.gpus_needed}, with GPUs of {size}.")
    return lines


def _time_lines(time: Hours | None) -> list[str]:
    if time is None:
        return []
    parts = f"sampling {time.sampling:.2f}, scoring {time.scoring:.2f}, update {time.update:.2f}"
    return [
        f"about {time.step:.2f} hours per step ({parts}), {time.step * time.steps:.0f} hours for {time.steps} steps, "
        "evaluations aside; not measured, but computed from:",
        *(f"  {assumption}" for assumption in time.assumptions),
    ]


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "items": [asdict(item) for item in verdict.estimate.items],
        "device": asdict(verdict.device),
        "needed_bytes": verdict.needed,
        "usable_bytes": verdict.usable,
        "fits": verdict.fits,
        "changes": [asdict(change) for change in verdict.changes],
        "gpus_needed": verdict.gpus_needed,
    }


def _gib(num_bytes: int) -> str:
    """`12.3 GiB`, `45 MiB`."""
    if num_bytes >= 2**30:
        return f"{num_bytes / 2**30:.1f} GiB"
    return f"{num_bytes / 2**20:.0f} MiB"
