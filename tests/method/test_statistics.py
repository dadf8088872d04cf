"""`token_statistics` against whole logits: values, gradients, chunks, dtypes, memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from pivot.method import TokenStatistics, token_statistics

ROOT = Path(__file__).parent.parent.parent


def whole(
    hidden: Tensor, weight: Tensor, targets: Tensor, corrupted: Tensor | None = None, temperature: float = 1.0
) -> TokenStatistics:
    """The same from logits that exist all at once."""
    log_p = (hidden @ weight.T / temperature).log_softmax(-1)
    logprobs = log_p.gather(1, targets[:, None])[:, 0]
    entropy = -(log_p.exp() * log_p).sum(-1)
    if corrupted is None:
        return TokenStatistics(logprobs, entropy)
    log_q = (corrupted @ weight.T / temperature).log_softmax(-1).detach()
    divergence = (log_p.exp() * (log_p - log_q)).sum(-1).detach()
    return TokenStatistics(logprobs, entropy, log_q.gather(1, targets[:, None])[:, 0], divergence)


def case(num: int, size: int, vocabulary: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    hidden, corrupted = (torch.randn(num, size, generator=generator, dtype=torch.float64) for _ in range(2))
    weight = torch.randn(vocabulary, size, generator=generator, dtype=torch.float64)
    targets = torch.randint(vocabulary, (num,), generator=generator)
    return hidden.to(dtype), weight.to(dtype), targets, corrupted.to(dtype)


@settings(derandomize=True, deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    num=st.integers(0, 23),
    vocabulary=st.integers(1, 40),
    chunk=st.one_of(st.none(), st.integers(1, 30)),
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_gradients_against_whole_logits(
    seed: int, num: int, vocabulary: int, chunk: int | None, temperature: float, dtype: torch.dtype
) -> None:
    hidden, weight, targets, corrupted = case(num, 6, vocabulary, dtype, seed)
    grads = []
    results = []
    for form in ("chunked", "whole"):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        if form == "chunked":
            values = token_statistics(
                h, w, targets, corrupted_hidden_ND=corrupted, temperature=temperature, chunk_tokens=chunk
            )
        else:
            values = whole(h, w, targets, corrupted, temperature)
        weights = torch.linspace(-1, 2, num, dtype=dtype)
        ((values.logprobs_N * weights).sum() + (values.entropy_N * weights.flip(0)).sum()).backward()
        grads.append((h.grad, w.grad))
        results.append([value.detach() for value in values if value is not None])
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
    assert_close(results[0], results[1], **tolerance)
    assert_close(grads[0], grads[1], **tolerance)


@pytest.mark.parametrize("chunk", [3, 100])
def test_gradients_are_numerically_right(chunk: int) -> None:
    hidden, weight, targets, corrupted = case(7, 4, 9, torch.float64)
    leaves = (hidden.requires_grad_(), weight.requires_grad_())
    assert torch.autograd.gradcheck(
        lambda h, w: token_statistics(
            h, w, targets, corrupted_hidden_ND=corrupted, temperature=0.7, chunk_tokens=chunk
        )[:2],
        leaves,
    )
    assert torch.autograd.gradcheck(
        lambda h, w: token_statistics(h, w, targets, chunk_tokens=chunk, with_entropy=False).logprobs_N,
        leaves,
    )


def test_by_hand() -> None:
    # Logits (log 3, 0): p = 3/4, 1/4; corrupted logits (0, 0): q = 1/2, 1/2.
    hidden = torch.tensor([[3.0], [3.0]], dtype=torch.float64).log()
    weight, targets = torch.tensor([[1.0], [0.0]], dtype=torch.float64), torch.tensor([0, 1])
    found = token_statistics(hidden, weight, targets, corrupted_hidden_ND=torch.zeros_like(hidden))
    p, half = torch.tensor([0.75, 0.25], dtype=torch.float64), torch.tensor([0.5, 0.5], dtype=torch.float64)
    assert_close(found.logprobs_N, p.log())
    assert_close(found.entropy_N, -(p * p.log()).sum().expand(2))
    assert_close(found.corrupted_logprobs_N, half.log())
    assert_close(found.divergence_N, (p * (p / half).log()).sum().expand(2))


def test_identical_images_have_no_divergence() -> None:
    hidden, weight, targets, _ = case(9, 8, 300, torch.float32)
    found = token_statistics(hidden, weight, targets, corrupted_hidden_ND=hidden.clone(), chunk_tokens=4)
    assert torch.equal(found.corrupted_logprobs_N, found.logprobs_N)
    assert torch.equal(found.divergence_N, torch.zeros(9))


def test_the_corrupted_side_carries_no_gradient() -> None:
    hidden, weight, targets, corrupted = case(4, 3, 5, torch.float32)
    corrupted.requires_grad_()
    found = token_statistics(hidden.requires_grad_(), weight, targets, corrupted_hidden_ND=corrupted)
    assert found.logprobs_N.requires_grad
    assert not found.corrupted_logprobs_N.requires_grad
    assert not found.divergence_N.requires_grad


@pytest.mark.parametrize("chunk", [2, 50])
def test_a_frozen_head_gets_no_gradient_and_a_graph_may_be_walked_twice(chunk: int) -> None:
    hidden, weight, targets, _ = case(5, 3, 7, torch.float64)
    hidden.requires_grad_()
    found = token_statistics(hidden, weight, targets, chunk_tokens=chunk)
    first = torch.autograd.grad(found.logprobs_N.sum(), hidden, retain_graph=True)[0]
    entropy_alone = torch.autograd.grad(found.entropy_N.sum(), hidden, retain_graph=True)[0]
    both = torch.autograd.grad(found.logprobs_N.sum() + found.entropy_N.sum(), hidden)[0]
    assert weight.grad is None
    assert_close(first + entropy_alone, both)


def test_without_gradients_nothing_is_saved() -> None:
    hidden, weight, targets, _ = case(5, 3, 7, torch.float32)
    assert token_statistics(hidden, weight, targets).logprobs_N.grad_fn is None
    with torch.no_grad():
        assert not token_statistics(hidden.requires_grad_(), weight, targets).entropy_N.requires_grad


def test_bfloat16_is_float32_after_the_matrix_product() -> None:
    hidden, weight, targets, corrupted = case(12, 16, 200, torch.bfloat16)
    found = token_statistics(
        hidden.requires_grad_(),
        weight.requires_grad_(),
        targets,
        corrupted_hidden_ND=corrupted,
        chunk_tokens=5,
    )
    logits, corrupted_logits = (hidden @ weight.T).float().detach(), (corrupted @ weight.T).float().detach()
    eye = torch.eye(200)
    expected = whole(logits, eye, targets, corrupted_logits)
    assert found.logprobs_N.dtype == torch.float32
    assert_close(found, expected, rtol=1e-4, atol=1e-4)
    (found.logprobs_N.sum() + found.entropy_N.sum()).backward()
    assert hidden.grad.dtype == weight.grad.dtype == torch.bfloat16
    reference = hidden.detach().float().requires_grad_()
    exact = whole(reference, weight.detach().float(), targets)
    (exact.logprobs_N.sum() + exact.entropy_N.sum()).backward()
    # The logits and their gradient are rounded to 8 bits before the products.
    assert (hidden.grad.float() - reference.grad).norm() < 0.02 * reference.grad.norm()


def test_autocast_does_not_lower_the_accuracy() -> None:
    hidden, weight, targets, _ = case(6, 32, 50, torch.float32)
    plain = token_statistics(hidden, weight, targets)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_close(token_statistics(hidden, weight, targets), plain, rtol=0, atol=0)


def test_sure_and_impossible_tokens_stay_finite() -> None:
    hidden = torch.tensor([[1e4], [1e4], [0.0]], requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0], [0.0]], requires_grad=True)
    corrupted = torch.tensor([[-1e4], [1e4], [0.0]])
    found = token_statistics(hidden, weight, torch.tensor([0, 1, 2]), corrupted_hidden_ND=corrupted)
    assert found.logprobs_N.tolist()[:2] == [0.0, -2e4]
    assert found.entropy_N.tolist()[:2] == [0.0, 0.0]
    (found.logprobs_N.sum() + found.entropy_N.sum()).backward()
    for value in (*found, hidden.grad, weight.grad):
        assert bool(value.isfinite().all())


MEASURE = """
import json, os, torch
from benchmarks.head import measure
for form, tokens in (("chunked", 1024), ("whole", 512)):
    if os.fork() == 0:
        print(json.dumps(measure(form, tokens, vocabulary=151_936, hidden=64)), flush=True)
        os._exit(0)
    os.wait()
"""
"""Each form in a process of its own, so that no earlier peak is counted."""


@pytest.mark.slow
def test_memory_stays_below_one_copy_of_the_logits() -> None:
    """V = 151,936: whole float32 logits take 0.58 GiB per 1,024 tokens and copy; the naive form holds several."""
    done = subprocess.run([sys.executable, "-c", MEASURE], cwd=ROOT, check=True, capture_output=True)
    chunked, half_of_naive = (json.loads(line)["gib"] for line in done.stdout.splitlines())
    assert chunked < 0.58 < 1.5 < 2 * half_of_naive


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_ND": torch.zeros(4)}, r"hidden_ND must be a floating-point tensor of shape \[N, D\]"),
        ({"head_weight_VD": torch.zeros(5, 7)}, r"head_weight_VD .* \[V, 3\], got float32 of shape \[5, 7\]"),
        ({"head_weight_VD": torch.zeros(5, 3).double()}, r"head_weight_VD must have hidden_ND's dtype"),
        ({"targets_N": torch.zeros(4)}, r"targets_N must be a int32 or int64 tensor of shape \[4\]"),
        ({"targets_N": torch.zeros(9).long()}, r"targets_N .* \[4\], got int64 of shape \[9\]"),
        ({"corrupted_hidden_ND": torch.zeros(4, 2)}, r"corrupted_hidden_ND .* \[4, 3\], got .* \[4, 2\]"),
        ({"temperature": 0.0}, r"temperature must be above 0, got 0.0"),
        ({"chunk_tokens": 0}, r"chunk_tokens must be at least 1, got 0"),
    ],
)
def test_mistakes_are_named(change: dict, message: str) -> None:
    arguments = {
        "hidden_ND": torch.zeros(4, 3),
        "head_weight_VD": torch.zeros(5, 3),
        "targets_N": torch.zeros(4).long(),
        **change,
    }
    positional = [arguments.pop(name) for name in ("hidden_ND", "head_weight_VD", "targets_N")]
    with pytest.raises(ValueError, match=message):
        token_statistics(*positional, **arguments)
