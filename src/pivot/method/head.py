"""The language-model head as one differentiable function, a chunk of tokens at a time.

Written with buffers that are used again and in-place operations: memory is the whole point of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pivot.method.numerics import at_least_float32
from pivot.method.products import add_product_, is_faster, product


class HeadPlan(NamedTuple):
    """How the head is computed; everything that is not a tensor."""

    chunk_tokens: int
    scale: float
    """Multiplies the logits: 1 / temperature."""
    with_entropy: bool

    def chunks(self, num_tokens: int) -> Iterator[slice]:
        """Slices over the tokens; one empty slice where there are none."""
        starts = range(0, max(num_tokens, 1), self.chunk_tokens)
        return (slice(start, min(start + self.chunk_tokens, num_tokens)) for start in starts)


class ChunkedHead(torch.autograd.Function):
    """(hidden, weight, targets, corrupted hidden or None, plan) -> (log p, H, log q, KL), each [N] or None.

    d log p(y) / dz = onehot(y) - p and dH / dz = -p (log p + H).
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        targets_N: Tensor,
        corrupted_hidden_ND: Tensor | None,
        plan: HeadPlan,
    ) -> tuple[Tensor | None, ...]:
        num_tokens = len(hidden_ND)
        workspace = _Workspace(weight_VD, min(plan.chunk_tokens, num_tokens), plan.scale)
        columns = []
        for chunk in plan.chunks(num_tokens):
            corrupted_CD = None if corrupted_hidden_ND is None else corrupted_hidden_ND[chunk]
            columns.append(
                _forward_chunk(workspace, hidden_ND[chunk], targets_N[chunk], corrupted_CD, plan.with_entropy)
            )
        joined = (None if part[0] is None else torch.cat(part) for part in zip(*columns, strict=True))
        logprobs_N, entropy_N, log_norm_N, corrupted_logprobs_N, divergence_N = joined
        ctx.plan = plan
        ctx.set_materialize_grads(False)
        if any(ctx.needs_input_grad):
            # Where one chunk holds all, it is no more than backward needs: kept, it saves a matrix product.
            kept_NV = workspace.buffer("logits", num_tokens) if plan.chunk_tokens >= num_tokens else None
            ctx.save_for_backward(hidden_ND, weight_VD, targets_N, entropy_N, log_norm_N, kept_NV)
        if corrupted_logprobs_N is not None:
            ctx.mark_non_differentiable(corrupted_logprobs_N, divergence_N)
        return logprobs_N, entropy_N, corrupted_logprobs_N, divergence_N

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_logprobs_N: Tensor | None, grad_entropy_N: Tensor | None, *_: None
    ) -> tuple[Tensor | None, ...]:
        if grad_logprobs_N is None and grad_entropy_N is None:
            return None, None, None, None, None
        hidden_ND, weight_VD, targets_N, entropy_N, log_norm_N, kept_NV = ctx.saved_tensors
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        grad_hidden_ND = hidden_ND.new_empty(hidden_ND.shape) if needs_hidden else None
        grad_weight_VD = weight_VD.new_zeros(weight_VD.shape) if needs_weight else None
        workspace = _Workspace(weight_VD, min(ctx.plan.chunk_tokens, len(hidden_ND)), ctx.plan.scale)
        for chunk in ctx.plan.chunks(len(hidden_ND)):
            if kept_NV is None:
                logprobs_CV = workspace.logits(hidden_ND[chunk]).sub_(log_norm_N[chunk, None])
            else:
                logprobs_CV = kept_NV.clone()
            incoming = _Incoming(
                targets_N[chunk, None],
                None if grad_logprobs_N is None else grad_logprobs_N[chunk, None] * ctx.plan.scale,
                None if grad_entropy_N is None else grad_entropy_N[chunk, None] * ctx.plan.scale,
                None if entropy_N is None else entropy_N[chunk, None],
            )
            grad_CV = _logits_gradient_(logprobs_CV, workspace, incoming).to(hidden_ND.dtype)
            if grad_hidden_ND is not None:
                grad_hidden_ND[chunk] = product(grad_CV, weight_VD.T)
            if grad_weight_VD is not None:
                add_product_(grad_weight_VD, grad_CV, hidden_ND[chunk])
            del logprobs_CV, grad_CV  # the next chunk may take a new buffer
        return grad_hidden_ND, grad_weight_VD, None, None, None


class _Workspace:
    """The [chunk, V] buffers of one forward or backward pass, made when first needed."""

    def __init__(self, weight_VD: Tensor, chunk_tokens: int, scale: float) -> None:
        self._weight_VD = weight_VD
        self._shape = (chunk_tokens, weight_VD.shape[0])
        self._scale = scale
        self._buffers: dict[str, Tensor] = {}

    def buffer(self, name: str, num_tokens: int) -> Tensor:
        """[num_tokens, V] in float32 or better; the same memory each time."""
        if name not in self._buffers:
            dtype = at_least_float32(self._weight_VD.new_empty(0)).dtype
            self._buffers[name] = self._weight_VD.new_empty(self._shape, dtype=dtype)
        return self._buffers[name][:num_tokens]

    def logits(self, hidden_CD: Tensor, name: str = "logits") -> Tensor:
        """scale * h W^T, in the buffer `name`."""
        if is_faster(hidden_CD, self._weight_VD):  # it has no `out`: its result becomes the buffer
            self._buffers.pop(name, None)
            logits_CV = self._buffers[name] = product(hidden_CD, self._weight_VD)
            return logits_CV if self._scale == 1.0 else logits_CV.mul_(self._scale)
        logits_CV = self.buffer(name, len(hidden_CD))
        if logits_CV.dtype == hidden_CD.dtype:
            torch.mm(hidden_CD, self._weight_VD.T, out=logits_CV)
        else:
            logits_CV.copy_(hidden_CD @ self._weight_VD.T)
        return logits_CV if self._scale == 1.0 else logits_CV.mul_(self._scale)


class _Columns(NamedTuple):
    logprobs_C: Tensor
    entropy_C: Tensor | None
    log_norm_C: Tensor
    """logsumexp of the logits, with which backward finds log p again."""
    corrupted_logprobs_C: Tensor | None
    divergence_C: Tensor | None


def _forward_chunk(
    workspace: _Workspace,
    hidden_CD: Tensor,
    targets_C: Tensor,
    corrupted_CD: Tensor | None,
    with_entropy: bool,
) -> _Columns:
    """The chunk's statistics; leaves log p in the buffer "logits"."""
    scratch_CV = workspace.buffer("scratch", len(hidden_CD))
    clean_CV = workspace.logits(hidden_CD)
    log_norm_C = _log_softmax_(clean_CV, scratch_CV)
    logprobs_C = clean_CV.gather(1, targets_C[:, None])[:, 0]
    entropy_C = corrupted_logprobs_C = divergence_C = None
    if with_entropy:
        entropy_C = -torch.exp(clean_CV, out=scratch_CV).mul_(clean_CV).sum(dim=1)
    if corrupted_CD is not None:
        corrupted_CV = workspace.logits(corrupted_CD, "corrupted")
        _log_softmax_(corrupted_CV, scratch_CV)
        corrupted_logprobs_C = corrupted_CV.gather(1, targets_C[:, None])[:, 0]
        gap_CV = torch.sub(clean_CV, corrupted_CV, out=corrupted_CV)
        # A KL is never negative; its rounding may be.
        divergence_C = torch.exp(clean_CV, out=scratch_CV).mul_(gap_CV).sum(dim=1).clamp_(min=0)
    return _Columns(logprobs_C, entropy_C, log_norm_C, corrupted_logprobs_C, divergence_C)


def _log_softmax_(logits_CV: Tensor, scratch_CV: Tensor) -> Tensor:
    """Turn logits into log-probabilities in place; returns their logsumexp [C]."""
    highest_C1 = logits_CV.amax(dim=1, keepdim=True)
    sum_C1 = torch.sub(logits_CV, highest_C1, out=scratch_CV).exp_().sum(dim=1, keepdim=True)
    log_norm_C1 = sum_C1.log_().add_(highest_C1)
    logits_CV.sub_(log_norm_C1)
    return log_norm_C1[:, 0]


class _Incoming(NamedTuple):
    """What backward is given for a chunk; columns of shape [C, 1], None where there is no gradient."""

    targets_C1: Tensor
    grad_logprobs_C1: Tensor | None
    grad_entropy_C1: Tensor | None
    entropy_C1: Tensor | None


def _logits_gradient_(logprobs_CV: Tensor, workspace: _Workspace, incoming: _Incoming) -> Tensor:
    """Turn log-probabilities into the gradient by the logits, in place.

    g_logp (onehot - p) - g_H p (log p + H)
    """
    targets_C1, grad_logprobs_C1, grad_entropy_C1, entropy_C1 = incoming
    if grad_entropy_C1 is None or entropy_C1 is None:
        assert grad_logprobs_C1 is not None
        grad_CV = logprobs_CV.exp_().mul_(-grad_logprobs_C1)
    else:
        probs_CV = torch.exp(logprobs_CV, out=workspace.buffer("scratch", len(logprobs_CV)))
        constant_C1 = grad_entropy_C1 * entropy_C1
        if grad_logprobs_C1 is not None:
            constant_C1 = constant_C1 + grad_logprobs_C1
        grad_CV = logprobs_CV.mul_(-grad_entropy_C1).sub_(constant_C1).mul_(probs_CV)
    if grad_logprobs_C1 is not None:
        grad_CV.scatter_add_(1, targets_C1, grad_logprobs_C1)
    return grad_CV
