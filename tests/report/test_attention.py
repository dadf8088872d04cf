import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from pivot.errors import UserError
from pivot.evaluation.attention import ImageAttention
from pivot.report.attention import AttentionStudy, write_attention


@pytest.fixture
def study():
    generator = np.random.default_rng(0)
    ids = tuple(f"angle/test/{i}" for i in range(9))
    models = [
        ImageAttention(name, ids, generator.uniform(0.05, 0.2, (9, layers)), np.arange(9.0))
        for name, layers in (("base", 28), ("<b>pivot</b> & co", 36))
    ]
    return AttentionStudy("tiny", 1, models)


def test_the_figure_comes_as_svg_pdf_and_png(study, tmp_path):
    paths = write_attention(study, tmp_path / "deep" / "out")
    assert [path.name for path in paths] == [f"attention.{end}" for end in ("svg", "pdf", "png", "json")]
    assert ET.parse(paths[0]).getroot().tag.endswith("svg")
    assert paths[1].read_bytes().startswith(b"%PDF")
    with Image.open(paths[2]) as picture:
        assert picture.width > 600


def test_the_numbers_are_the_measured_ones(study, tmp_path):
    numbers = json.loads(write_attention(study, tmp_path)[-1].read_text())
    assert (numbers["data"], numbers["samples"], numbers["level"]) == ("tiny", 1, 0.95)
    for told, measured in zip(numbers["models"], study.models, strict=True):
        low, high = measured.interval()
        assert told["model"] == measured.model
        assert told["prompts"] == 9
        assert told["response_tokens"] == 4.0
        np.testing.assert_allclose(told["mean"], measured.mean_N, atol=1e-6)
        np.testing.assert_allclose(told["low"], low, atol=1e-6)
        np.testing.assert_allclose(told["high"], high, atol=1e-6)
        np.testing.assert_allclose(list(told["by_prompt"].values()), measured.mass_PN, atol=1e-6)
        assert (np.array(told["low"]) < told["mean"]).all()
        assert (np.array(told["mean"]) < told["high"]).all()


def test_the_same_numbers_give_the_same_bytes(study, tmp_path):
    first, second = write_attention(study, tmp_path / "a"), write_attention(study, tmp_path / "b")
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]


def test_a_folder_that_cannot_be_written_is_one_sentence(study, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        write_attention(study, tmp_path / "file")
