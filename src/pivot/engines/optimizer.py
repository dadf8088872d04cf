"""AdamW, with float32 master weights if the model is held in a narrower type.

At a learning rate of 1e-6 an update is far smaller than bfloat16's spacing around most weights, and would be rounded
away.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class MasterAdamW:
    """AdamW on float32 copies of the weights; the model holds their rounded values.

    For a float32 model the copies are the weights themselves, and this is plain AdamW.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], **settings: Any) -> None:
        self._weights = list(parameters)
        self._masters = [p if p.dtype == torch.float32 else p.detach().float() for p in self._weights]
        self._adam = torch.optim.AdamW(self._masters, **settings)

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
        """Update the masters by the weights' gradients, then round them into the weights."""
        copies = [(w, m) for w, m in zip(self._weights, self._masters, strict=True) if w is not m]
        for weight, master in copies:
            master.grad = None if weight.grad is None else weight.grad.float()
        self._adam.step()
        for weight, master in copies:
            weight.copy_(master)
            master.grad = None

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
