"""With gradient checkpointing: as many layers as a budget allows keep their activations instead of recomputing them.

Recomputing is a quarter of the work of an update. Either way the same operations give the same numbers.
"""

from __future__ import annotations

from typing import Any

from transformers.modeling_layers import GradientCheckpointingLayer

from pivot.models.family import Family


class ActivationBudget:
    """Bytes of activations that a micro-batch may keep."""

    def __init__(self, model: Any, family: Family, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        size, config = model.dtype.itemsize, model.config
        self._text = _layers(family.text_model(model))
        self._per_token = family.text_stack(config).activation_bytes(size)
        trained = any(parameter.requires_grad for parameter in family.vision_parameters(model))
        language = set(map(id, self._text))
        self._vision = [layer for layer in _layers(model) if trained and id(layer) not in language]
        self._per_patch = family.vision_stack(config).activation_bytes(size, is_vision=True)

    def give_up(self) -> bool:
        """Recompute everything from now on; False where that was so already."""
        had, self.num_bytes = self.num_bytes, 0
        return had > 0

    def spend(self, num_tokens: int, num_patches: int) -> None:
        """Choose for a micro-batch of this size. The last layers keep theirs: backward frees those first."""
        left = self.num_bytes - _keep(self._text, num_tokens * self._per_token, self.num_bytes)
        _keep(self._vision, num_patches * self._per_patch, left)


def _layers(model: Any) -> list[GradientCheckpointingLayer]:
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def _keep(layers: list[GradientCheckpointingLayer], bytes_each: int, budget: int) -> int:
    """Bytes that are kept."""
    count = min(len(layers), budget // max(bytes_each, 1))
    for index, layer in enumerate(layers):
        layer.gradient_checkpointing = index < len(layers) - count
    return count * bytes_each
