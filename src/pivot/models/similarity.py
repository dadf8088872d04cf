"""How much the hidden states of response tokens resemble those of their prompt's image tokens (PEPO's VS)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pivot.models.rows import Rows

if TYPE_CHECKING:
    from pivot.models.policy import Policy


class Similarity:
    """VS_t = mean over layers l and image tokens n of cos(h_lt, v_ln).

    The mean over image tokens of a cosine is the product with the mean of their unit vectors, so that one vector per
    prompt and layer is kept and no [tokens, image tokens] matrix. 0 for prompts without an image. No gradient.
    """

    def __init__(self, rows: Rows, image_token_id: int) -> None:
        is_image_M = (rows.input_ids_RL == image_token_id).flatten()
        prompt_M = rows.prompt_RL.flatten()
        self._image_K = is_image_M.nonzero()[:, 0]
        self._place_N = rows.place_N
        self._image_prompt_K, self._prompt_N = prompt_M[self._image_K], prompt_M[rows.place_N]
        self._count_P = torch.bincount(self._image_prompt_K, minlength=int(prompt_M.max()) + 1)
        self._total_N = torch.zeros(len(rows.place_N), device=rows.place_N.device)
        self._num_layers = 0

    @classmethod
    @contextmanager
    def of(cls, policy: Policy, rows: Rows) -> Iterator[Similarity]:
        """Within the block every layer of the language model is watched."""
        similarity = cls(rows, policy.family.image_token_id)
        layers = policy.family.text_layers(policy.model)
        hooks = [layer.register_forward_hook(similarity.watch) for layer in layers]
        try:
            yield similarity
        finally:
            for hook in hooks:
                hook.remove()

    @property
    def mean_N(self) -> Tensor:
        """VS of each predicted token."""
        assert self._num_layers, "the block has run no layer"
        return self._total_N / self._num_layers

    @torch.no_grad()
    def watch(self, module: object, inputs: object, output: Any) -> None:
        """A forward hook of a layer; its output is the hidden states [R, L, D], or a tuple that starts with them."""
        hidden_MD = (output[0] if isinstance(output, tuple) else output).flatten(0, 1)
        image_KD = _unit(hidden_MD, self._image_K)
        sum_PD = image_KD.new_zeros(len(self._count_P), image_KD.shape[1])
        mean_PD = sum_PD.index_add_(0, self._image_prompt_K, image_KD) / self._count_P.clamp(min=1)[:, None]
        token_ND = _unit(hidden_MD, self._place_N)
        self._total_N += (token_ND * mean_PD.index_select(0, self._prompt_N)).sum(dim=1)
        self._num_layers += 1


def _unit(hidden_MD: Tensor, places: Tensor) -> Tensor:
    return F.normalize(hidden_MD.index_select(0, places).float(), dim=1)
