"""The policy pi_theta: one model with its encoder, and the two forwards that everything else is built from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import Cache

from pivot.method import token_statistics
from pivot.models.encoding import EncodedPrompt, PromptEncoder
from pivot.models.rows import PromptWithResponses, Rows, repeated_rows, tree_rows
from pivot.models.shared_prefix import shares_prefixes
from pivot.models.vision import ImageFeatures, encode_images

Layout = Literal["tree", "repeated"]
VISION_TOKENS = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
VISION_PADDING = "<|vision_pad|>"
FEATURE_CACHE_BYTES = 2 * 2**30


@dataclass
class ResponseStatistics:
    """What a forward pass says of B responses, padded to T tokens; 0 where masked."""

    mask_BT: Tensor
    logprobs_BT: Tensor
    entropy_BT: Tensor
    """Zeros where it was not asked for."""
    corrupted_logprobs_BT: Tensor | None = None
    divergence_BT: Tensor | None = None
    """KL(clean || corrupted) over the whole vocabulary (Eq. 4, a token)."""


class Policy:
    """A vision-language model that scores responses and whose parts rollouts are made of."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, encoder: PromptEncoder
    ) -> None:
        self.model: Any = model
        """Hugging Face's own class; its parts are not typed."""
        self.tokenizer, self.encoder = tokenizer, encoder
        self.temperature = 1.0
        """Divides the logits of every log-prob, entropy and divergence: the policy is what is sampled from."""
        self.pad_id = _first_id(tokenizer.pad_token_id)
        self.end_ids = _end_ids(model, tokenizer)
        self.banned_ids = _vision_ids(model, tokenizer)
        self._features: dict[tuple[str, str], list[ImageFeatures]] = {}
        self._feature_bytes = 0
        self._encoding = Lock()
        """Two threads may ask for the same image: the second waits and finds it done."""

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def head_weight_VD(self) -> Tensor:
        return self.model.get_output_embeddings().weight

    @property
    def num_parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    def trainable_parameters(self) -> dict[str, torch.nn.Parameter]:
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    @contextmanager
    def training(self) -> Iterator[None]:
        """Where gradients are taken. Hugging Face recomputes activations in training mode alone, and decodes
        without a cache then; these models have no dropout that the mode could switch on too."""
        self.model.train(self.model.is_gradient_checkpointing)
        try:
            yield
        finally:
            self.model.eval()

    # Images ----------------------------------------------------------------------------------------------

    def features(
        self, prompts: Sequence[EncodedPrompt], view: Literal["clean", "corrupted"] = "clean"
    ) -> list[list[ImageFeatures]]:
        """Image features of each prompt: computed once for the same weights, with gradient where it is on."""
        if torch.is_grad_enabled() and any(p.requires_grad for p in self.model.model.visual.parameters()):
            return self._encode(prompts)
        with self._encoding:
            missing = [p for p in prompts if (view, p.prompt.id) not in self._features]
            fresh = {p.prompt.id: f for p, f in zip(missing, self._encode(missing), strict=True)}
            self._keep(view, fresh)
        return [fresh.get(p.prompt.id) or self._features.get((view, p.prompt.id), []) for p in prompts]

    def knows_features(self, prompt: EncodedPrompt, view: Literal["clean", "corrupted"]) -> bool:
        """Whether `features` would compute nothing for this prompt."""
        return (view, prompt.prompt.id) in self._features

    def forget_features(self) -> None:
        """To be called whenever weights or corruption masks change."""
        self._features.clear()
        self._feature_bytes = 0

    def _keep(self, view: str, features: dict[str, list[ImageFeatures]]) -> None:
        size = sum(f.num_bytes for images in features.values() for f in images)
        if self._feature_bytes + size <= FEATURE_CACHE_BYTES:
            self._features.update({(view, name): images for name, images in features.items()})
            self._feature_bytes += size

    def _encode(self, prompts: Sequence[EncodedPrompt]) -> list[list[ImageFeatures]]:
        flat = iter(encode_images(self.model, [image for p in prompts for image in p.images]))
        return [[next(flat) for _ in p.images] for p in prompts]

    # Forwards --------------------------------------------------------------------------------------------

    def embed(self, input_ids_RL: Tensor, features_R: Sequence[Sequence[ImageFeatures]]) -> dict[str, object]:
        """Token embeddings with the image features of each row in their places."""
        embeds = self.model.get_input_embeddings()(input_ids_RL)
        images = [image for row in features_R for image in row]
        if not images:
            return {"inputs_embeds": embeds}
        is_image_RL = input_ids_RL == self.encoder.image_token_id
        tokens = torch.cat([image.tokens_ND for image in images]).to(embeds.dtype)
        inputs: dict[str, object] = {
            "inputs_embeds": embeds.masked_scatter(is_image_RL[..., None], tokens),
        }
        layers = list(zip(*(image.deepstack_ND for image in images), strict=True))
        if layers:
            inputs["visual_pos_masks"] = is_image_RL
            inputs["deepstack_visual_embeds"] = [torch.cat(layer).to(embeds.dtype) for layer in layers]
        return inputs

    def hidden(
        self,
        inputs: dict[str, object],
        position_ids_3RL: Tensor,
        attention_mask: Tensor | None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Last hidden states [R, L, D]; positions and mask are explicit, so nothing is left to be guessed."""
        return self.model.model.language_model(
            **inputs,
            position_ids=position_ids_3RL,
            attention_mask=attention_mask,
            past_key_values=cache,
            use_cache=cache is not None,
        ).last_hidden_state

    def score(
        self,
        units: Sequence[PromptWithResponses],
        features: Sequence[Sequence[ImageFeatures]],
        *,
        layout: Layout,
        corrupted_features: Sequence[Sequence[ImageFeatures]] | None = None,
        with_entropy: bool = True,
    ) -> ResponseStatistics:
        """Log-prob and entropy of every response token, in the units' order of responses.

        With `corrupted_features`, also under the corrupted images and the divergence of the two (no gradient).
        """
        rows = (tree_rows(units) if layout == "tree" else repeated_rows(units, self.pad_id)).to(self.device)
        clean_ND = self._predictors(rows, features)
        corrupted_ND = None
        if corrupted_features is not None:
            with torch.no_grad():
                corrupted_ND = self._predictors(rows, corrupted_features)
        found = token_statistics(
            clean_ND,
            self.head_weight_VD,
            rows.targets_N,
            corrupted_hidden_ND=corrupted_ND,
            temperature=self.temperature,
            with_entropy=with_entropy,
        )
        return ResponseStatistics(
            mask_BT=rows.mask_BT,
            logprobs_BT=rows.spread(found.logprobs_N),
            entropy_BT=rows.spread(found.entropy_N),
            corrupted_logprobs_BT=None if corrupted_ND is None else rows.spread(found.corrupted_logprobs_N),
            divergence_BT=None if corrupted_ND is None else rows.spread(found.divergence_N),
        )

    def _predictors(self, rows: Rows, features: Sequence[Sequence[ImageFeatures]]) -> Tensor:
        """Hidden states [N, D] that predict the response tokens."""
        inputs = self.embed(rows.input_ids_RL, [features[u] for u in rows.unit_R])
        if rows.shared_prefix is not None:
            assert shares_prefixes(self.model), "tree rows need the attention of models/shared_prefix.py"
            inputs["shared_prefix"] = rows.shared_prefix
        hidden_RLD = self.hidden(inputs, rows.position_ids_3RL, None)
        return hidden_RLD.flatten(0, 1).index_select(0, rows.predictor_N)


def _vision_ids(model: Any, tokenizer: Any) -> list[int]:
    """Tokens that stand for images: one of them in a response would break the next forward pass."""
    settings = model.config.to_dict()
    ids = {settings[name] for name in VISION_TOKENS if settings.get(name) is not None}
    ids |= {i for text, i in tokenizer.get_added_vocab().items() if text == VISION_PADDING}
    return sorted(ids)


def _first_id(ids: Any) -> int:
    """A tokenizer may name no padding; what stands there is masked anyway."""
    if isinstance(ids, list):
        return ids[0]
    return 0 if ids is None else ids


def _end_ids(model: Any, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens that end a response: the generation config's, and the tokenizer's end of turn."""
    found = model.generation_config.eos_token_id if model.generation_config else None
    ids = set(found if isinstance(found, list) else [] if found is None else [found])
    if tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    return sorted(ids)
