"""`python -m experiments.headroom.sets`: the prompts that runs of the start `small` train on and are measured on."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.headroom.panels import prompt
from experiments.prompt_files import write_set

SIZES: Mapping[str, int] = {"train": 240, "validation": 60, "test": 120, "ood": 120}
"""Split -> prompts; a third of each set has each level."""
FOLDER = Path("runs") / "headroom" / "sets"


def write_sets(folder: Path, sizes: Mapping[str, int] = SIZES) -> dict[str, str]:
    """Write `FOLDER/panels-SPLIT.jsonl` for each split; returns their digests."""
    return {
        split: write_set([prompt(split, index) for index in range(size)], folder / f"panels-{split}.jsonl")
        for split, size in sizes.items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.headroom.sets", description=__doc__)
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder (%(default)s)")
    folder = parser.parse_args(argv).out
    for split, digest in write_sets(folder).items():
        print(f"{folder}/panels-{split}.jsonl: {SIZES[split]} prompts, digest {digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
