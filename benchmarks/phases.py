"""Where the time of a step goes on one GPU with vLLM: arithmetic, computed and not run.

    python -m benchmarks.phases [--recipe geo3k-3b]

Shares of sampling, scoring and update by `pivot doctor`'s arithmetic, for a few methods and GPUs; what it assumes is
printed below the table.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from pivot import recipes
from pivot.config import Config
from pivot.doctor.speed import Hours, hours, named_gpu
from pivot.method import preset
from pivot.models.architecture import find_architecture

GPUS = ("A100-80GB", "H100-80GB")
METHODS = ("dapo", "vppo", "pivot")


def phases(config: Config, gpu: str) -> dict[str, Hours]:
    """By method."""
    model = find_architecture(config.model.path)
    return {name: hours(replace(config, method=preset(name)), model, named_gpu(gpu)) for name in METHODS}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="geo3k-3b")
    config = recipes.get(parser.parse_args().recipe)
    print("| GPU | method | sampling | scoring | update | step, s | over DAPO |")
    print("|---|---|--:|--:|--:|--:|--:|")
    said: list[str] = []
    for gpu in GPUS:
        found = phases(config, gpu)
        for name, one in found.items():
            shares = [f"{part / one.step:.0%}" for part in (one.sampling, one.scoring, one.update)]
            over = "" if name == "dapo" else f"+{one.step / found['dapo'].step - 1:.0%}"
            print(f"| {gpu} | {name} | {' | '.join(shares)} | {3600 * one.step:.0f} | {over} |")
        said += [line for line in found["dapo"].assumptions if line not in said]
    print()
    for line in said:
        print(f"- {line}")


if __name__ == "__main__":
    main()
