"""AdamW, with float32 master weights if the model is held in a narrower type.

At a learning rate of 1e-6 an update is far smaller than bfloat16's spacing around most weights, and would be rounded
away.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pivot.errors import UserError

BUCKET_BYTES = 256 * 2**20
"""float32 gradients that exist at once during a step; a single larger weight is a bucket of its own."""
Kind = Literal["adamw", "adamw_8bit"]


class MasterAdamW:
    """AdamW on float32 copies of the weights; the model holds their rounded values.

    For a float32 model the copies are the weights themselves, and this is plain AdamW. `adamw_8bit` keeps the moments
    in 8 bits (bitsandbytes); `offload` keeps copies and moments in the machine's memory and steps there.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        kind: Kind = "adamw",
        offload: bool = False,
        **settings: Any,
    ) -> None:
        self._weights = list(parameters)
        self._masters = [_master(p, offload) for p in self._weights]
        self._adam = _adam(kind, self._masters, settings)
        self._buckets = list(_buckets(self._masters))

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The model's own weights, which hold the gradients."""
        return self._weights

    def set_lr(self, lr: float) -> None:
        for group in self._adam.param_groups:
            group["lr"] = lr

    def zero_grad(self) -> None:
        for weight, master in zip(self._weights, self._masters, strict=True):
            weight.grad = master.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update the masters by the weights' gradients, then round them into the weights.

        AdamW treats every weight on its own, so going bucket by bucket gives the same numbers. A gradient is freed as
        soon as it is used.
        """
        gradients = [weight.grad for weight in self._weights]
        self.zero_grad()
        for bucket in self._buckets:
            for i in bucket:
                gradient, gradients[i] = gradients[i], None
                if gradient is not None:
                    self._masters[i].grad = gradient.to(self._masters[i].device).float()
            self._adam.step()
            for i in bucket:
                if self._weights[i] is not self._masters[i]:
                    self._weights[i].copy_(self._masters[i])
                self._masters[i].grad = None

    def state_dict(self) -> dict[str, Any]:
        masters: dict[str, Tensor] = {
            str(i): m for i, (w, m) in enumerate(zip(self._weights, self._masters, strict=True)) if w is not m
        }
        return {"adam": self._adam.state_dict(), "masters": masters}

    def tensors_of(self, state: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """(the tensors of a saved state, tensors of the shapes they should have), by their place."""
        saved = {f"masters/{index}": value for index, value in state["masters"].items()}
        expected = {f"masters/{index}": value for index, value in self.state_dict()["masters"].items()}
        for index, values in state["adam"]["state"].items():
            saved |= {f"{index}/{name}": value for name, value in values.items()}
            if 0 <= index < len(self._masters):
                like = self._masters[index]
                shapes = {"step": like.new_zeros(()), "exp_avg": like, "exp_avg_sq": like}
                expected |= {f"{index}/{name}": value for name, value in shapes.items()}
        return saved, expected

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._adam.load_state_dict(state["adam"])
        for index, value in state["masters"].items():
            self._masters[int(index)].copy_(value)


def _master(weight: nn.Parameter, offload: bool) -> Tensor:
    """The float32 weight that is updated: the model's own one where that is possible."""
    if offload:
        return weight.detach().to("cpu", torch.float32, copy=True)
    return weight if weight.dtype == torch.float32 else weight.detach().float()


def _adam(kind: Kind, masters: list[Tensor], settings: dict[str, Any]) -> torch.optim.Optimizer:
    if kind == "adamw":
        return torch.optim.AdamW(masters, fused=True, **settings)
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError as cause:
        raise UserError(
            "train.optimizer=adamw_8bit needs bitsandbytes; install it with: pip install 'pivot-rl[quantized]'"
        ) from cause
    return AdamW8bit(masters, **settings)


def _buckets(masters: list[Tensor]) -> Iterator[list[int]]:
    """Indices of neighbouring weights whose gradients together fit BUCKET_BYTES."""
    bucket: list[int] = []
    size = 0
    for i, master in enumerate(masters):
        if bucket and size + master.nbytes > BUCKET_BYTES:
            yield bucket
            bucket, size = [], 0
        bucket.append(i)
        size += master.nbytes
    if bucket:
        yield bucket
