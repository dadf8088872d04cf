"""What tests share: one quiet thread each, no network, small real prompts, the tiny policy."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from PIL import Image

torch.set_num_threads(1)


@dataclass(frozen=True)
class Picture:
    """An image source that holds its image."""

    image: Image.Image

    def open(self) -> Image.Image:
        return self.image


@pytest.fixture(scope="session")
def picture():
    """Make an image source: a coloured box on white, of any size."""

    def make(width: int = 84, height: int = 84, colour: str = "red") -> Picture:
        image = Image.new("RGB", (width, height), "white")
        image.paste(Image.new("RGB", (width // 2, height // 3), colour), (width // 4, height // 4))
        return Picture(image)

    return make


@pytest.fixture
def policy():
    """The shipped tiny model, fresh for each test."""
    from pivot.policy.loading import load_policy

    return load_policy("tiny")


@pytest.fixture
def shared_data() -> Path:
    """The real samples beside the repository; tests that need them skip where they are absent."""
    folder = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("../shared/data is absent")
    return folder
