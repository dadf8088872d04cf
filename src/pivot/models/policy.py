"""The policy pi_theta: one model with its encoder; image features, scores of responses, and the start of decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import Cache

from pivot.errors import UserError
from pivot.method import token_statistics
from pivot.models.decoding import Continuation, PrefilledPrompts
from pivot.models.encoding import PromptEncoder
from pivot.models.family import EncodedPrompt, ImageFeatures, Layout
from pivot.models.rows import PromptWithResponses, Rows, repeated_rows, tree_rows
from pivot.models.shared_prefix import shares_prefixes
from pivot.models.similarity import Similarity

FEATURE_CACHE_BYTES = 2 * 2**30


@dataclass
class ResponseStatistics:
    """Scores of B responses, padded to T tokens; 0 where masked."""

    mask_BT: Tensor
    logprobs_BT: Tensor
    entropy_BT: Tensor
    """Zeros if not requested."""
    corrupted_logprobs_BT: Tensor | None = None
    divergence_BT: Tensor | None = None
    """KL(clean || corrupted) over the whole vocabulary (Eq. 4, per token)."""
    similarity_BT: Tensor | None = None
    """Mean cosine with the image tokens' hidden states, over all layers."""


class Policy:
    """A vision-language model that scores responses and starts decoding."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, encoder: PromptEncoder
    ) -> None:
        self.model: Any = model
        """Hugging Face's own class; its parts are not typed."""
        self.tokenizer, self.encoder, self.family = tokenizer, encoder, encoder.family
        self.temperature = 1.0
        """Divides the logits of every log-prob, entropy and divergence."""
        self.pad_id = _first_id(tokenizer.pad_token_id)
        self.end_ids = _end_ids(model, tokenizer)
        self.banned_ids = self.family.banned_ids()
        self._features: dict[tuple[str, str], list[ImageFeatures]] = {}
        self._feature_bytes = 0
        self._encoding = Lock()
        """Two threads may need the same image: the second waits for the first."""

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def head_weight_VD(self) -> Tensor:
        return self.model.get_output_embeddings().weight

    @property
    def num_parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    @property
    def cache_bytes_per_token(self) -> int:
        """Keys and values of all layers of the language model."""
        text = self.family.text_stack(self.model.config)
        return 2 * text.layers * text.key_width * self.model.dtype.itemsize

    def trainable_parameters(self) -> dict[str, torch.nn.Parameter]:
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    @contextmanager
    def training(self) -> Iterator[None]:
        """Training mode, if gradient checkpointing is on: Hugging Face recomputes activations in that mode alone.

        In training mode it decodes without a cache, so the mode ends with the block. Dropout is not used.
        """
        self.model.train(self.model.is_gradient_checkpointing)
        try:
            yield
        finally:
            self.model.eval()

    # Images ----------------------------------------------------------------------------------------------

    def features(
        self, prompts: Sequence[EncodedPrompt], view: Literal["clean", "corrupted"] = "clean"
    ) -> list[list[ImageFeatures]]:
        """Image features of each prompt, cached until `forget_features` unless they need a gradient."""
        if torch.is_grad_enabled() and any(
            p.requires_grad for p in self.family.vision_parameters(self.model)
        ):
            return self._encode(prompts)
        # Without a graph: with gradient checkpointing Hugging Face asks for gradients of a frozen tower's inputs.
        with self._encoding, torch.no_grad():
            missing = [p for p in prompts if (view, p.prompt.id) not in self._features]
            fresh = {p.prompt.id: f for p, f in zip(missing, self._encode(missing), strict=True)}
            self._keep(view, fresh)
        return [fresh.get(p.prompt.id) or self._features.get((view, p.prompt.id), []) for p in prompts]

    def num_patches(self, prompts: Sequence[EncodedPrompt]) -> int:
        """Patches of all images, in the vision tower."""
        tokens = sum(int((p.input_ids_L == self.family.image_token_id).sum()) for p in prompts)
        return tokens * self.family.patches_per_token(self.model.config)

    def knows_features(self, prompt: EncodedPrompt, view: Literal["clean", "corrupted"]) -> bool:
        """Whether `features` would compute nothing for this prompt."""
        return (view, prompt.prompt.id) in self._features

    def forget_features(self) -> None:
        """Call this whenever weights or corruption masks change."""
        self._features.clear()
        self._feature_bytes = 0

    def _keep(self, view: str, features: dict[str, list[ImageFeatures]]) -> None:
        size = sum(f.num_bytes for images in features.values() for f in images)
        if self._feature_bytes + size <= FEATURE_CACHE_BYTES:
            self._features.update({(view, name): images for name, images in features.items()})
            self._feature_bytes += size

    def _encode(self, prompts: Sequence[EncodedPrompt]) -> list[list[ImageFeatures]]:
        images = [image for p in prompts for image in p.images]
        flat = iter(self.family.image_features(self.model, images))
        return [[next(flat) for _ in p.images] for p in prompts]

    # Forwards --------------------------------------------------------------------------------------------

    def embed(self, input_ids_RL: Tensor, features_R: Sequence[Sequence[ImageFeatures]]) -> dict[str, Any]:
        """Inputs of the language model for rows and the images that occur in each."""
        return self.family.embed(self.model, input_ids_RL, [image for row in features_R for image in row])

    def hidden(
        self,
        inputs: dict[str, Any],
        position_ids_ARL: Tensor,
        attention_mask: Tensor | None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Last hidden states [R, L, D]; rows are causal without a mask."""
        return self.family.hidden(self.model, inputs, position_ids_ARL, attention_mask, cache)

    def prefill(self, prompts: Sequence[EncodedPrompt]) -> tuple[PrefilledPrompts, Tensor]:
        """One forward pass over left-padded prompts: their cache, and the hidden states [P, D] after them."""
        lengths = [len(p) for p in prompts]
        num_axes, longest = len(prompts[0].position_ids_AL), max(lengths)
        ids_PL = torch.full((len(prompts), longest), self.pad_id)
        positions_APL = torch.zeros(num_axes, len(prompts), longest, dtype=torch.int64)
        seen_PL = torch.zeros(len(prompts), longest, dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            start = longest - len(prompt)
            ids_PL[row, start:] = prompt.input_ids_L
            positions_APL[:, row, start:] = prompt.position_ids_AL
            seen_PL[row, start:] = True
        mask = None
        if min(lengths) < longest:
            mask = self.family.prefill_mask(self.model, seen_PL).to(self.device)
        cache = self.family.new_cache(self.model)
        inputs = self.embed(ids_PL.to(self.device), self.features(prompts))
        hidden_PD = self.hidden(inputs, positions_APL.to(self.device), mask, cache)[:, -1]
        position_P = torch.tensor([p.next_position for p in prompts], device=self.device)
        return PrefilledPrompts(cache, seen_PL.to(self.device), position_P), hidden_PD

    def continuation(self, prompts: PrefilledPrompts, num_samples: int, max_tokens: int) -> Continuation:
        """Responses to prefilled prompts, to be decoded token by token."""
        return self.family.continuation(self.model, prompts, num_samples, max_tokens)

    def score(
        self,
        units: Sequence[PromptWithResponses],
        features: Sequence[Sequence[ImageFeatures]],
        *,
        layout: Layout,
        corrupted_features: Sequence[Sequence[ImageFeatures]] | None = None,
        corrupted_units: Sequence[PromptWithResponses] | None = None,
        with_entropy: bool = True,
        with_similarity: bool = False,
    ) -> ResponseStatistics:
        """Log-prob and entropy of every response token, responses in the order of the units.

        With `corrupted_features` also log-probs under the corrupted images (no gradient) and the divergence;
        `corrupted_units` are the same responses to prompts whose images are hidden.
        """
        rows = self._rows(units, layout)
        with Similarity.of(self, rows) if with_similarity else nullcontext() as similarity:
            clean_ND = self.predictors(rows, features)
        corrupted_ND = None
        if corrupted_features is not None:
            damaged = rows if corrupted_units is None else self._rows(corrupted_units, layout)
            with torch.no_grad():
                corrupted_ND = self.predictors(damaged, corrupted_features)
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
            similarity_BT=None if similarity is None else rows.spread(similarity.mean_N),
        )

    def _rows(self, units: Sequence[PromptWithResponses], layout: Layout) -> Rows:
        rows = tree_rows(units) if layout == "tree" else repeated_rows(units, self.pad_id)
        return rows.to(self.device)

    def predictors(self, rows: Rows, features: Sequence[Sequence[ImageFeatures]]) -> Tensor:
        """Hidden states [N, D] that predict the response tokens."""
        inputs = self.embed(rows.input_ids_RL, [features[u] for u in rows.unit_R])
        text_model = self.family.text_model(self.model)
        if rows.shared_prefix is not None:
            assert shares_prefixes(text_model), "tree rows need the attention of models/shared_prefix.py"
            inputs["shared_prefix"] = rows.shared_prefix
        mask_RL = torch.ones_like(rows.input_ids_RL) if rows.has_gaps else None
        hidden_RLD = self.hidden(inputs, rows.position_ids_ARL, mask_RL)
        if rows.shared_prefix is not None:
            rows.shared_prefix.check_reached(text_model.config.num_hidden_layers)
        return hidden_RLD.flatten(0, 1).index_select(0, rows.predictor_N)


def _first_id(ids: Any) -> int:
    """The padding token, if the tokenizer has one; padding is masked, so any token will do."""
    if isinstance(ids, list):
        return ids[0]
    return 0 if ids is None else ids


def _end_ids(model: Any, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens that end a response: those of the generation config, and the tokenizer's end of turn."""
    found = model.generation_config.eos_token_id if model.generation_config else None
    ids = set(found if isinstance(found, list) else [] if found is None else [found])
    if not all(isinstance(one, int) for one in ids):
        raise UserError(
            f"the model's generation_config.json sets eos_token_id to {found!r}, expected token numbers"
        )
    if tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    return sorted(ids)
