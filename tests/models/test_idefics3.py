"""What Idefics3 and SmolVLM do in their own way: tiles, their grid, limits of images; the rest is test_families.py."""

import numpy as np
import pytest
from PIL import Image

from pivot.errors import UserError
from pivot.evaluation.attention import measure
from pivot.models.corruption import Corruption, Corruptor
from pivot.models.loading import ModelOptions, file_limits, load_policy
from pivot.sampling import Sampling
from pivot.types import Prompt

SIDE, PATCH, TOKENS_PER_TILE = 56, 14, 4


@pytest.fixture
def folder(family_folder):
    return family_folder("smolvlm")


def test_corruption_acts_on_the_towers_patches_and_can_be_looked_at(model, picture):
    source = picture(168, 112)
    encoded = model.encoder.encode(Prompt("p", "<image>Read.", "1", (source,)))
    image = encoded.images[0]
    assert image.pixels.shape == (7, 3, SIDE, SIDE)
    assert (np.asarray(model.family.picture(image)) == np.asarray(source.image)).all()
    after = Corruptor(model.encoder, Corruption("patch", 0.6), seed=0).corrupt(encoded, 1).images[0]
    black = ((after.pixels * 0.5 + 0.5).abs() < 1e-6).all(1)
    kept = (after.pixels == image.pixels).all(1)
    whole = [
        cell.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).flatten(3).all(-1) for cell in (black, kept)
    ]
    assert (whole[0] | whole[1]).all(), "each patch is black or untouched"
    assert 0.4 < whole[0].float().mean() < 0.8
    grey = Corruptor(model.encoder, Corruption("grey"), seed=0).corrupt(encoded, 1).images[0]
    assert (np.asarray(model.family.picture(grey)) == 128).all()
    # Tiles know where they are: the lower half of the patches covers the lower half of the picture.
    canvas = model.family.canvas(image)
    lower = model.family.repaint(image, canvas.per_pixel(canvas.centre_N2[:, 0] > 0.5), 0.0)
    shown = np.asarray(model.family.picture(lower))
    assert (shown[56:] == 0).all()
    assert (shown[:56] == np.asarray(source.image)[:56]).all()


@pytest.mark.parametrize("splits", [True, False])
def test_the_grid_follows_from_the_size_alone(model, splits):
    model.family.image_processor.do_image_splitting = splits
    sizes = np.random.default_rng(0).integers(1, 400, (60, 2)).tolist()
    for width, height in [*sizes, (56, 56), (168, 168), (169, 168), (1, 400), (400, 1), (57, 113)]:
        encoded = model.family.encode_image(Image.new("RGB", (width, height)))
        assert model.family.grid_of(width, height) == encoded.grid, (width, height)


def test_image_limits_are_numbers_of_tiles(folder, picture):
    assert file_limits(folder) == (1, (3 * SIDE) ** 2)
    small = load_policy(str(folder), ModelOptions(max_pixels=(2 * SIDE + 5) ** 2))
    assert small.encoder.image_limits == (1, (2 * SIDE) ** 2)
    assert small.family.encode_image(picture(300, 200).open()).grid == (2, 2)
    whole = load_policy(str(folder), ModelOptions(max_pixels=1))
    assert whole.family.encode_image(picture(300, 200).open()).grid == (0, 0)
    assert len(whole.encoder.encode(Prompt("p", "<image>Read.", "1", (picture(300, 200),)))) > TOKENS_PER_TILE


def test_tree_rows_are_refused_before_training(folder, make_trainer):
    with pytest.raises(UserError, match="layout=repeated or auto"):
        make_trainer(folder, "train.layout=tree")


def test_attention_on_images_is_measured(model, prompts):
    found = measure(model, [prompts[0]], "own", sampling=Sampling(max_tokens=4))
    assert found.mass_PN.shape == (1, 2)
    assert ((found.mass_PN > 0) & (found.mass_PN < 1)).all()
