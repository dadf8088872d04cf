import numpy as np
import pytest
import torch

from pivot.errors import UserError
from pivot.sampling.base import Sampling
from pivot.sampling.drawing import draw_tokens, keep_nucleus, uniform_stream

NOTHING = torch.tensor([], dtype=torch.int64)


def frequencies(logits, sampling, banned=NOTHING, draws=40_000):
    uniform = torch.from_numpy(uniform_stream(5, draws))
    tokens = draw_tokens(logits.index_fill(-1, banned, -torch.inf).expand(draws, -1), uniform, sampling)
    return np.bincount(tokens.numpy(), minlength=logits.numel()) / draws


def test_draws_follow_the_distribution():
    logits = torch.tensor([0.3, -1.0, 2.0, 0.0, -5.0])
    expected = logits.softmax(-1).numpy()
    assert np.abs(frequencies(logits, Sampling()) - expected).max() < 0.01


def test_temperature_flattens_and_zero_takes_the_likeliest():
    logits = torch.tensor([0.3, -1.0, 2.0])
    expected = (logits / 2).softmax(-1).numpy()
    assert np.abs(frequencies(logits, Sampling(temperature=2.0)) - expected).max() < 0.01
    assert frequencies(logits, Sampling(temperature=0.0))[2] == 1.0


def test_top_k_and_banned_tokens_are_never_drawn():
    logits = torch.tensor([3.0, 2.0, 1.0, 0.0])
    found = frequencies(logits, Sampling(top_k=2), banned=torch.tensor([0]))
    assert found[0] == 0
    assert found[3] == 0
    assert abs(found[1] - np.e / (1 + np.e)) < 0.01


def test_nucleus_by_hand():
    probs = torch.tensor([[0.1, 0.5, 0.15, 0.25]])
    assert keep_nucleus(probs, 0.5).tolist() == [[0.0, 0.5, 0.0, 0.0]]
    kept = keep_nucleus(probs, 0.51)
    torch.testing.assert_close(kept, torch.tensor([[0.0, 0.5, 0.0, 0.25]]))
    torch.testing.assert_close(keep_nucleus(probs, 0.95), probs)


def test_equally_likely_tokens_are_in_the_nucleus_together():
    """Which of them a sort would put first is arbitrary; bfloat16 logits are often equal."""
    probs = torch.tensor([[0.125, 0.5, 0.125, 0.25]])
    assert keep_nucleus(probs, 0.8).tolist() == probs.tolist()
    assert keep_nucleus(torch.full((1, 4), 0.25), 0.3).tolist() == [[0.25] * 4]


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.99, 0.999])
def test_nucleus_of_a_large_vocabulary_is_that_of_a_full_sort(top_p):
    """Peaked rows need a few tokens, flat ones most of them."""
    generator = torch.Generator().manual_seed(0)
    scale = torch.tensor([[0.01], [1.0], [3.0], [8.0]])
    probs_NV = (torch.randn(4, 5000, generator=generator) * scale).softmax(-1)
    ordered, order = probs_NV.sort(-1, descending=True)
    before = ordered.double().cumsum(-1) - ordered
    expected_NV = torch.zeros_like(probs_NV).scatter(-1, order, ordered.masked_fill(before >= top_p, 0.0))
    assert torch.equal(keep_nucleus(probs_NV, top_p), expected_NV)
    rows = [keep_nucleus(row, top_p) for row in probs_NV.split(1)]
    assert torch.equal(torch.cat(rows), expected_NV), "whatever stands beside a row"


def test_a_row_that_is_not_finite_leaves_its_neighbours_alone():
    """Weights that have diverged: the update that follows is skipped, so no draw may raise."""
    probs_NV = torch.randn(3, 5000, generator=torch.Generator().manual_seed(0)).softmax(-1)
    expected_NV = keep_nucleus(probs_NV, 0.99)
    for value in (torch.nan, -torch.nan, torch.inf):
        broken_NV = probs_NV.clone()
        broken_NV[1] = value
        kept_NV = keep_nucleus(broken_NV, 0.99)
        assert torch.equal(kept_NV[[0, 2]], expected_NV[[0, 2]])
    logits_NV = torch.zeros(2, 5000)
    logits_NV[0, 0] = torch.nan
    drawn_N = draw_tokens(logits_NV, torch.tensor([0.5, 0.5], dtype=torch.float64), Sampling(top_p=0.99))
    assert int(drawn_N.max()) < 5000


def test_the_edges_of_the_unit_interval_hit_tokens_with_probability():
    logits = torch.tensor([[-torch.inf, 0.0, 0.0, -torch.inf]] * 2)
    edges = torch.tensor([0.0, 1.0 - 2**-53], dtype=torch.float64)
    assert draw_tokens(logits, edges, Sampling()).tolist() == [1, 2]


def test_streams_depend_on_their_key_alone():
    assert (uniform_stream(7, 10) == uniform_stream(7, 20)[:10]).all()
    assert (uniform_stream(7, 10) != uniform_stream(8, 10)).all()


@pytest.mark.parametrize(
    "bad", [{"temperature": -1}, {"top_p": 0}, {"top_p": 1.5}, {"top_k": -1}, {"max_tokens": 0}]
)
def test_settings_that_cannot_be_sampled_with_are_refused(bad):
    with pytest.raises(UserError, match="expected temperature"):
        Sampling(**bad)
