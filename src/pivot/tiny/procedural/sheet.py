"""Contact sheets of the tasks, for people to look at: `python -m pivot.tiny.procedural.sheet docs/images`."""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image

from pivot.tiny import procedural
from pivot.tiny.procedural.canvas import SIZE

SCALE = 2
MARGIN = 6
COLUMNS = 6
"""Two problems of each level."""


def contact_sheet(task: str) -> Image.Image:
    """First row in domain (train), second row out of domain; levels 1, 2, 3 in turn."""
    cell = SIZE * SCALE + MARGIN
    sheet = Image.new("RGB", (COLUMNS * cell + MARGIN, 2 * cell + MARGIN), (205, 205, 205))
    for row, split in enumerate(("train", "ood")):
        for column in range(COLUMNS):
            image = procedural.make(task, split, column).images[0].open()
            image = image.resize((SIZE * SCALE, SIZE * SCALE), Image.Resampling.NEAREST)
            sheet.paste(image, (MARGIN + column * cell, MARGIN + row * cell))
    return sheet


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for task in procedural.TASKS:
        contact_sheet(task).save(folder / f"tiny_{task}.png", optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images"))
