import numpy as np
import pytest
import torch
from PIL import Image

from pivot.models.corruption import Corruption, Corruptor
from pivot.types import Prompt


@pytest.fixture
def encoded(policy, picture):
    return policy.encoder.encode(
        Prompt("p", "<image>Compare <image>.", "1", (picture(112, 84), picture(84, 84)))
    )


def pixels(corruptor, image):
    return np.asarray(corruptor.picture(image)).astype(int)


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


def test_masks_hang_on_seed_step_prompt_and_image_alone(policy, encoded, picture):
    corruptor = Corruptor(policy.encoder, Corruption(), seed=3)
    once = corruptor.corrupt(encoded, 7)
    corruptor.corrupt(encoded, 8)
    again = Corruptor(policy.encoder, Corruption(), seed=3).corrupt(encoded, 7)
    for a, b in zip(once.images, again.images, strict=True):
        assert torch.equal(a.patches_NC, b.patches_NC)
    others = [
        corruptor.corrupt(encoded, 8),
        Corruptor(policy.encoder, Corruption(), seed=4).corrupt(encoded, 7),
        corruptor.corrupt(
            policy.encoder.encode(Prompt("q", "<image>Compare <image>.", "1", encoded.prompt.images)), 7
        ),
    ]
    for other in others:
        assert not torch.equal(once.images[0].patches_NC, other.images[0].patches_NC)


def test_grey_is_grey(policy, encoded):
    corruptor = Corruptor(policy.encoder, Corruption("grey"), seed=0)
    assert (pixels(corruptor, corruptor.corrupt(encoded, 1).images[0]) == 128).all()


def test_gaussian_saturates_about_half_of_the_pixels_and_both_frames_alike(policy):
    grey = Prompt("g", "<image>Read.", "1", (_Still(Image.new("RGB", (112, 112), (128, 128, 128))),))
    corruptor = Corruptor(policy.encoder, Corruption("gaussian", sigma=189.0), seed=0)
    image = corruptor.corrupt(policy.encoder.encode(grey), 1).images[0]
    frames = image.patches_NC.view(-1, 3, 2, 196)
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
    assert image.grid_thw == encoded.images[0].grid_thw
    values = pixels(corruptor, image)
    # Resized cells are not the ViT's patches: between black and white the resize leaves other values.
    assert 0 < (values == 0).mean() < 1
    assert ((values > 0) & (values < 255)).any()


class _Still:
    def __init__(self, image):
        self.image = image

    def open(self):
        return self.image
