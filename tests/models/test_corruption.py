import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pivot.errors import UserError
from pivot.models import corruption
from pivot.models.corruption import Corruption, Corruptor, raw_canvas
from pivot.types import Prompt


@pytest.fixture
def encoded(policy, picture):
    return policy.encoder.encode(
        Prompt("p", "<image>Compare <image>.", "1", (picture(112, 84), picture(84, 84)))
    )


def pixels(corruptor, image):
    return np.asarray(corruptor.encoder.family.picture(image)).astype(int)


def test_patches_are_black_or_untouched_and_as_many_as_asked(policy, encoded):
    corruptor = Corruptor(policy.encoder, Corruption("patch", 0.6), seed=3)
    shares = []
    for step in range(60):
        for before, after in zip(encoded.images, corruptor.corrupt(encoded, step).images, strict=True):
            old, new = pixels(corruptor, before), pixels(corruptor, after)
            for top in range(0, old.shape[0], 14):
                for left in range(0, old.shape[1], 14):
                    cell = np.s_[top : top + 14, left : left + 14]
                    black = not new[cell].any()
                    assert black or (new[cell] == old[cell]).all()
                    shares.append(black)
    assert abs(np.mean(shares) - 0.6) < 4 * np.sqrt(0.24 / len(shares))


def test_the_picture_of_patches_is_the_resized_image(policy, picture):
    corruptor = Corruptor(policy.encoder, Corruption(), seed=0)
    source = picture(84, 112, "blue")
    encoded = policy.encoder.encode(Prompt("p", "<image>Read.", "1", (source,)))
    assert (pixels(corruptor, encoded.images[0]) == np.asarray(source.image)).all()


def test_masks_depend_on_seed_step_prompt_and_image_alone(policy, encoded, picture):
    corruptor = Corruptor(policy.encoder, Corruption(), seed=3)
    once = corruptor.corrupt(encoded, 7)
    corruptor.corrupt(encoded, 8)
    again = Corruptor(policy.encoder, Corruption(), seed=3).corrupt(encoded, 7)
    for a, b in zip(once.images, again.images, strict=True):
        assert torch.equal(a.pixels, b.pixels)
    others = [
        corruptor.corrupt(encoded, 8),
        Corruptor(policy.encoder, Corruption(), seed=4).corrupt(encoded, 7),
        corruptor.corrupt(
            policy.encoder.encode(Prompt("q", "<image>Compare <image>.", "1", encoded.prompt.images)), 7
        ),
    ]
    for other in others:
        assert not torch.equal(once.images[0].pixels, other.images[0].pixels)


def test_grey_is_grey(policy, encoded):
    corruptor = Corruptor(policy.encoder, Corruption("grey"), seed=0)
    assert (pixels(corruptor, corruptor.corrupt(encoded, 1).images[0]) == 128).all()


def test_gaussian_saturates_about_half_of_the_pixels_and_both_frames_alike(policy):
    grey = Prompt("g", "<image>Read.", "1", (_Still(Image.new("RGB", (112, 112), (128, 128, 128))),))
    corruptor = Corruptor(policy.encoder, Corruption("gaussian", sigma=189.0), seed=0)
    image = corruptor.corrupt(policy.encoder.encode(grey), 1).images[0]
    frames = image.pixels.view(-1, 3, 2, 196)
    assert torch.equal(frames[:, :, 0], frames[:, :, 1])
    values = pixels(corruptor, image)
    assert abs(np.isin(values, (0, 255)).mean() - 0.5) < 0.02
    assert values.min() >= 0
    assert values.max() <= 255


def test_raw_mode_masks_the_original_image(policy, picture):
    source = picture(200, 120)
    encoded = policy.encoder.encode(Prompt("p", "<image>Read.", "1", (source,)))
    corruptor = Corruptor(policy.encoder, Corruption(raw=True), seed=1)
    image = corruptor.corrupt(encoded, 2).images[0]
    assert image.grid == encoded.images[0].grid
    values = pixels(corruptor, image)
    # Resized cells are not the ViT's patches: between black and white the resize leaves other values.
    assert 0 < (values == 0).mean() < 1
    assert ((values > 0) & (values < 255)).any()


OWN = """
from pivot.models.corruption import GREY


def band(canvas, settings, generator):
    '''Hides the upper part of the image; `probability` is its share.'''
    hidden_N = canvas.centre_N2[:, 0] < settings.probability
    return canvas.per_pixel(hidden_N), GREY


def wrong(canvas, settings, generator):
    return canvas.values
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """A module of the user's in the folder where the command is started, not on the import path."""
    (tmp_path / "my_corruptions.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield "my_corruptions"
    sys.modules.pop("my_corruptions", None)
    corruption._imported.cache_clear()


@pytest.mark.parametrize("raw", [False, True])
def test_a_corruption_from_outside_is_named_by_its_module(policy, picture, own_module, raw):
    source = picture(84, 112)
    encoded = policy.encoder.encode(Prompt("p", "<image>Read.", "1", (source,)))
    corruptor = Corruptor(policy.encoder, Corruption(f"{own_module}:band", probability=0.5, raw=raw), seed=0)
    old, new = np.asarray(source.image), pixels(corruptor, corruptor.corrupt(encoded, 1).images[0])
    assert (new[:56] == 128).all()
    assert (new[56:] == old[56:]).all()
    assert str(Path.cwd()) not in sys.path, "the current folder is on the path for this import alone"


def test_a_run_takes_a_corruption_from_outside(own_module, small_config, tmp_path):
    import pivot

    config = small_config("pivot", f"corruption.kind={own_module}:band", "train.steps=1")
    pivot.train(config, tmp_path / "run", quiet=True)
    assert (tmp_path / "run" / "metrics.jsonl").read_text().strip()


def test_a_registered_name_is_known_from_then_on(monkeypatch):
    monkeypatch.setattr(corruption, "CORRUPTIONS", dict(corruption.CORRUPTIONS))
    with pytest.raises(UserError, match="must be one of patch, grey, gaussian, or module:function"):
        Corruption("white")
    corruption.register("white", lambda canvas, settings, generator: (True, 255.0))
    assert Corruption("white").kind == "white"
    for taken in ("patch", "white", "a:b"):
        with pytest.raises(UserError, match="cannot be registered"):
            corruption.register(taken, corruption.patch)


def test_a_corruption_that_returns_something_else_is_named(policy, encoded, own_module):
    corruptor = Corruptor(policy.encoder, Corruption(f"{own_module}:wrong"), seed=0)
    with pytest.raises(UserError, match="my_corruptions:wrong returned Tensor; expected"):
        corruptor.corrupt(encoded, 0)


def test_patch_centres_point_at_their_pixels(policy):
    """Each patch has its own colour: looked up by its centre, the picture has the patch's colour there."""
    rows, columns = 6, 8
    colours = np.random.default_rng(0).integers(0, 256, (rows, columns, 3), dtype=np.uint8)
    image = colours.repeat(14, 0).repeat(14, 1)
    encoded = policy.family.encode_image(Image.fromarray(image))
    for canvas in (policy.family.canvas(encoded), raw_canvas(image, 14)):
        assert canvas.num_patches == rows * columns
        place_N2 = (canvas.centre_N2 * torch.tensor(image.shape[:2])).long()
        for number, (y, x) in enumerate(place_N2.tolist()):
            of_patch = canvas.per_pixel(torch.arange(canvas.num_patches) == number)
            means = (canvas.values * of_patch).sum((0, 1) if canvas.values.ndim == 3 else (0, 2, 3)) / 196
            assert np.allclose(means, image[y, x], atol=1e-3)


FROZEN = {
    ("patch", False): "009e05b124f8 caa5f1eb6579",
    ("patch", True): "c33a4d007315 70e4a5609987",
    ("grey", False): "d2bff95add41 d2bff95add41",
    ("grey", True): "d2bff95add41 d2bff95add41",
    ("gaussian", False): "1d9e4074bf5d 5afc25b66d55",
    ("gaussian", True): "1d70638bef4b 10cfdcdfd906",
}
"""Digests of corrupted images, so that a change of the code cannot change masks or noise unnoticed."""


@pytest.mark.parametrize(("kind", "raw"), FROZEN)
def test_masks_and_noise_do_not_change_between_versions(policy, kind, raw):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 130, 3), dtype=np.uint8))
    sources = (_Still(noise), _Still(Image.new("RGB", (200, 120), "white")))
    encoded = policy.encoder.encode(Prompt("p", "<image>Compare <image>.", "1", sources))
    images = Corruptor(policy.encoder, Corruption(kind, 0.6, 189.0, raw), 7).corrupt(encoded, 3).images
    digests = [hashlib.sha256(image.pixels.contiguous().numpy().tobytes()).hexdigest() for image in images]
    assert " ".join(digest[:12] for digest in digests) == FROZEN[kind, raw]


class _Still:
    def __init__(self, image):
        self.image = image

    def open(self):
        return self.image
