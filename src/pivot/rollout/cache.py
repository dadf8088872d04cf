"""A key/value cache that is filled once a prompt and grows without copying itself at every token."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PretrainedConfig
from transformers.cache_utils import Cache, DynamicLayer


class GrowingLayer(DynamicLayer):
    """Keys and values in a buffer with room to spare; what is filled is handed out as a view.

    Hugging Face's dynamic layer concatenates at every token, which copies the whole cache T times.
    """

    room = 64
    """Tokens by which the buffer grows."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.dtype, self.device = key_states.dtype, key_states.device
            self.keys, self.values, self.is_initialized = key_states, value_states, True
            self._filled = key_states.shape[2]
            return key_states, value_states
        assert self.keys is not None
        assert self.values is not None
        end = self._filled + key_states.shape[2]
        if end > self.keys.shape[2]:
            self.keys = _with_room(self.keys, end + self.room)
            self.values = _with_room(self.values, end + self.room)
        self.keys[:, :, self._filled : end] = key_states
        self.values[:, :, self._filled : end] = value_states
        self._filled = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_seq_length(self) -> int:
        return self._filled if self.is_initialized else 0


def _with_room(filled: Tensor, length: int) -> Tensor:
    shape = (*filled.shape[:2], length, filled.shape[3])
    grown = torch.empty(shape, dtype=filled.dtype, device=filled.device)
    grown[:, :, : filled.shape[2]] = filled
    return grown


def growing_cache(config: PretrainedConfig) -> Cache:
    """An empty cache for every layer of a text model; it can be repeated and selected from like any other."""
    return Cache(layers=[GrowingLayer() for _ in range(config.num_hidden_layers)])
