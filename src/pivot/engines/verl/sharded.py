"""A policy whose weights verl holds in FSDP2 shards over the ranks.

FSDP2 gathers weights in the hooks of a module's call. `together` calls the whole model with a function in place of
its inputs: within it everything that `Policy` does with the model's parts works as on whole weights.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from pivot.models.family import EncodedPrompt, ImageFeatures
from pivot.models.loading import prepare_forward
from pivot.models.policy import Policy

Work = Callable[[], tuple[Tensor, ...]]


class ShardedPolicy(Policy):
    """Scores responses on one rank; every rank must do so equally often."""

    def __init__(self, module: Any, outline: Policy, temperature: float = 1.0) -> None:
        """`outline` knows tokens and images, `module` has the weights."""
        super().__init__(module, outline.tokenizer, outline.encoder)
        self.temperature = temperature
        prepare_forward(module)
        module.forward = types.MethodType(_do, module)
        self.always_see = False
        """Whether rows without an image enter the vision tower as well, because other ranks do."""
        self._spare: Tensor | None = None

    def together(self, work: Work) -> tuple[Tensor, ...]:
        """What `work` returns, while the weights are there."""
        head = self.model.get_output_embeddings()
        if isinstance(head, FSDPModule):
            head.unshard()  # its weight is used without a call of its module
        self._spare = None
        return self.model(work)

    def let_go(self) -> None:
        """Forget gathered weights, which an optimizer step or a checkpoint would make stale."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def features(
        self, prompts: Sequence[EncodedPrompt], view: Literal["clean", "corrupted"] = "clean"
    ) -> list[list[ImageFeatures]]:
        """Never remembered: what one rank knows already, another may not, and they must not get out of step."""
        if self.always_see and not any(prompt.images for prompt in prompts):
            (blank,) = self._encode([prompts[0].with_images((self.family.blank_image(),))])
            self._spare = _nothing_of(blank[0])
        return self._encode(prompts)

    def embed(self, input_ids_RL: Tensor, features_R: Sequence[Sequence[ImageFeatures]]) -> dict[str, Any]:
        """As ever; the blank image that kept ranks in step adds zero, so that gradients reach the vision tower."""
        inputs = super().embed(input_ids_RL, features_R)
        if self._spare is not None:
            embeds = inputs["inputs_embeds"]
            assert isinstance(embeds, Tensor)
            inputs["inputs_embeds"] = embeds + self._spare.to(embeds.dtype)
        return inputs


def _do(_: Any, work: Work) -> tuple[Tensor, ...]:
    return work()


def _nothing_of(image: ImageFeatures) -> Tensor:
    """Zero, with a gradient path to everything that made the features."""
    return 0.0 * torch.stack([part.float().sum() for part in image.tensors]).sum()
