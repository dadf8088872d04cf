"""How much attention response tokens pay to image tokens, layer by layer (App. D.3).

The attention weights of all layers are [layers, heads, L, L]: 118 GB in float32 for 6,144 tokens of a 7B model. Here
every layer runs its usual fused attention; in addition, the weights of the response's queries are computed a few at a
time and summed over the image's keys. No tensor is larger than [heads, chunk, L].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionMaskInterface
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from pivot.errors import UserError
from pivot.models.family import EncodedPrompt
from pivot.models.policy import Policy
from pivot.models.rows import PromptWithResponses, repeated_rows
from pivot.sampling import Sampling, sample_responses
from pivot.types import Prompt

CHUNK_QUERIES = 128
"""Response tokens whose weights are computed together: 88 MB per tensor for 28 heads and 6,144 keys."""
BOOTSTRAP_DRAWS = 2000
_PROMPTS_AT_ONCE = 64
_INTERFACE = "pivot_image_mass"
AttentionMaskInterface.register(_INTERFACE, sdpa_mask)


@dataclass(frozen=True)
class ImageAttention:
    """Attention mass on image tokens, of one model's own responses.

    Example:
        ImageAttention("tiny", ("angle/test/0",), np.array([[0.09, 0.08, 0.11]]), np.array([41.0]))
    """

    model: str
    prompt_ids: tuple[str, ...]
    mass_PN: np.ndarray
    """[prompts, layers]: mean over heads, response tokens and the responses of a prompt."""
    num_tokens_P: np.ndarray
    """Mean length of a prompt's responses: longer responses have more text to attend to."""
    image_limits: tuple[int, int] | None = None
    """Smallest and largest image area, in pixels: larger images have more tokens to attend to."""

    @property
    def mean_N(self) -> np.ndarray:
        """Mean over prompts, per layer."""
        return self.mass_PN.mean(axis=0)

    def interval(self, level: float = 0.95, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper end of a percentile bootstrap interval over prompts, each [layers]."""
        generator = np.random.default_rng(seed)
        num_prompts = len(self.mass_PN)
        drawn = generator.integers(num_prompts, size=(BOOTSTRAP_DRAWS, num_prompts))
        means = np.stack([self.mass_PN[indices].mean(axis=0) for indices in drawn])
        low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
        return low, high


def measure(
    policy: Policy,
    prompts: Sequence[Prompt],
    name: str,
    *,
    num_samples: int = 1,
    sampling: Sampling | None = None,
    seed: int = 0,
) -> ImageAttention:
    """Sample the model's own responses to prompts with images, and measure their attention."""
    if not prompts or not all(prompt.images for prompt in prompts):
        raise UserError("attention to image tokens needs prompts with images; leave out those without.")
    sampling = sampling or Sampling()
    mass_P: list[Tensor] = []
    num_tokens_P: list[float] = []
    for start in range(0, len(prompts), _PROMPTS_AT_ONCE):
        encoded = [policy.encoder.encode(prompt) for prompt in prompts[start : start + _PROMPTS_AT_ONCE]]
        drawn = dict(sample_responses(policy, encoded, num_samples, sampling, key=(seed, "attention")))
        for index, prompt in enumerate(encoded):
            unit = PromptWithResponses(prompt, [response.token_ids_T for response in drawn[index]])
            mass_P.append(response_mass(policy, unit).mean(dim=0))
            num_tokens_P.append(sum(map(len, unit.responses)) / num_samples)
        policy.forget_features()
    ids = tuple(prompt.id for prompt in prompts)
    lengths, limits = np.array(num_tokens_P), policy.encoder.image_limits
    return ImageAttention(name, ids, torch.stack(mass_P).numpy(), lengths, limits)


@torch.no_grad()
def response_mass(policy: Policy, unit: PromptWithResponses, *, chunk_queries: int = CHUNK_QUERIES) -> Tensor:
    """Attention mass of each response's tokens on the prompt's image tokens, [responses, layers] on the CPU.

    mass = mean over heads and response tokens of the sum of softmax weights over image tokens; 0 without images.
    Responses are run one by one, without padding.
    """
    return torch.stack([_one_response(policy, unit.prompt, y, chunk_queries) for y in unit.responses])


def _one_response(policy: Policy, prompt: EncodedPrompt, response_T: Tensor, chunk_queries: int) -> Tensor:
    assert len(response_T) > 0, "a response has at least one token"
    rows = repeated_rows([PromptWithResponses(prompt, [response_T])], policy.pad_id).to(policy.device)
    is_image_L = rows.input_ids_RL[0] == policy.family.image_token_id
    watcher = _MassWatcher(is_image_L, len(prompt), chunk_queries)
    with _watching(policy, watcher):
        policy.predictors(rows, policy.features([prompt]))
    return torch.stack(watcher.mass)


class _MassWatcher:
    """An attention function that returns sdpa's result and records the mass of one row's response on its images."""

    def __init__(self, is_image_L: Tensor, first_query: int, chunk_queries: int) -> None:
        self.is_image_L, self.first_query, self.chunk_queries = is_image_L, first_query, chunk_queries
        self.mass: list[Tensor] = []
        """Mean over heads and response tokens, per layer."""

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float,
        **options: object,
    ) -> tuple[Tensor, Tensor | None]:
        """query [1, heads, L, d]; key and value [1, key heads, L, d], each shared by several query heads."""
        self.mass.append(self._mean_mass(query[0], key[0], scaling, attention_mask))
        usual = ALL_ATTENTION_FUNCTIONS["sdpa"]
        return usual(module, query, key, value, attention_mask, scaling=scaling, **options)

    def _mean_mass(
        self, query_HLd: Tensor, key_KLd: Tensor, scaling: float, attention_mask: Tensor | None
    ) -> Tensor:
        """`attention_mask` is boolean; None: causal."""
        num_heads, length, size = query_HLd.shape
        grouped_KGLd = query_HLd.view(len(key_KLd), -1, length, size)
        key_KdL = key_KLd.float().transpose(1, 2)[:, None]
        positions_L = torch.arange(length, device=query_HLd.device)
        total = torch.zeros((), dtype=torch.float64)
        for positions_C in positions_L[self.first_query :].split(self.chunk_queries):
            scores_KGCL = scaling * (grouped_KGLd[:, :, positions_C].float() @ key_KdL)
            seen_CL = positions_L <= positions_C[:, None]
            if attention_mask is not None:  # such as a sliding window
                seen_CL &= attention_mask[0, 0, positions_C]
            weights_KGCL = scores_KGCL.masked_fill(~seen_CL, -torch.inf).softmax(dim=-1)
            total += weights_KGCL[..., self.is_image_L].sum(dtype=torch.float64).cpu()
        return total / (num_heads * (length - self.first_query))


@contextmanager
def _watching(policy: Policy, watcher: _MassWatcher) -> Iterator[None]:
    """Within the block the language model's layers call the watcher."""
    config = policy.family.text_model(policy.model).config
    before = config._attn_implementation
    ALL_ATTENTION_FUNCTIONS[_INTERFACE] = watcher
    config._attn_implementation = _INTERFACE
    try:
        yield
    finally:
        config._attn_implementation = before
        del ALL_ATTENTION_FUNCTIONS[_INTERFACE]
