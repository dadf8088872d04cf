"""Sampling with vLLM: the same prompts, pixels, banned tokens and end-of-turn tokens as the native decoder.

This is the only file that imports vLLM (extra `vllm`). Images are resized by the policy's own processor before vLLM
receives them, so that both samplers see the same pixels however vLLM's processor resizes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image

from pivot.data.images import open_rgb
from pivot.errors import UserError
from pivot.models.corruption import GREY
from pivot.models.loading import ModelOptions, load_tokenizer_only
from pivot.sampling.base import SampleRequest
from pivot.seeding import stable_seed
from pivot.types import Prompt, Response

if TYPE_CHECKING:
    from vllm import LLM, RequestOutput, SamplingParams

CHUNK = 256
"""Prompts per call: vLLM batches them on its own, and a crash loses at most these."""
MAX_CONTEXT = 32768
"""Largest context (prompt and response) that vLLM reserves its cache for."""
MAX_IMAGES = 16
NEVER = -100.0
"""The strongest logit bias that vLLM accepts."""
SEEDS = 2**62
"""Seeds stay below this, so that vLLM can add a sample's index."""


class VllmSampler:
    """Draws responses with vLLM.

    Log-probs are the model's own (vLLM's raw log-probs), as the native decoder records them; entropies are not
    available and NaN. Draws depend on (key, prompt, sample), but differ from the native decoder's.
    """

    def __init__(self, folder: Path, options: ModelOptions | None = None) -> None:
        options = options or ModelOptions()
        self.outline = load_tokenizer_only(folder, options)
        settings = self.outline.family.processor_settings()
        self._llm = _start(folder, options, settings, self._context())

    def sample(
        self, prompts: Sequence[Prompt], request: SampleRequest
    ) -> Iterator[tuple[int, list[Response]]]:
        for start in range(0, len(prompts), CHUNK):
            chunk = prompts[start : start + CHUNK]
            inputs = [self._input(prompt, request.blank) for prompt in chunk]
            settings = [self._parameters(prompt, request) for prompt in chunk]
            outputs = self._llm.generate(inputs, settings, use_tqdm=False)
            for index, output in enumerate(outputs):
                yield start + index, self._responses(output)

    def close(self) -> None:
        """End vLLM's processes and free their memory."""
        self._llm.llm_engine.engine_core.shutdown()

    def _context(self) -> int:
        return min(MAX_CONTEXT, self.outline.model.config.get_text_config().max_position_embeddings)

    def _input(self, prompt: Prompt, blank: bool) -> dict[str, Any]:
        encoder = self.outline.encoder
        images = [encoder.resized(open_rgb(source)) for source in prompt.images]
        if blank:
            images = [Image.new("RGB", image.size, (int(GREY),) * 3) for image in images]
        ids = encoder.text_ids(prompt)
        multi_modal = {"multi_modal_data": {"image": images}} if images else {}
        return {"prompt_token_ids": ids, **multi_modal}

    def _parameters(self, prompt: Prompt, request: SampleRequest) -> SamplingParams:
        from vllm import SamplingParams

        sampling = request.sampling
        return SamplingParams(
            n=request.num_samples,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k or -1,
            max_tokens=sampling.max_tokens,
            min_tokens=sampling.min_tokens,
            seed=stable_seed(*request.key, prompt.id) % SEEDS,
            stop_token_ids=self.outline.end_ids,
            logit_bias=dict.fromkeys(self.outline.banned_ids, NEVER),
            logprobs=0,
        )

    def _responses(self, output: RequestOutput) -> list[Response]:
        responses = []
        for drawn in sorted(output.outputs, key=lambda one: one.index):
            ids = list(drawn.token_ids)
            logprobs = torch.tensor([at[i].logprob for i, at in zip(ids, drawn.logprobs or (), strict=True)])
            text = str(self.outline.tokenizer.decode(ids, skip_special_tokens=True))
            truncated = drawn.finish_reason != "stop"
            entropy = torch.full_like(logprobs, torch.nan)
            responses.append(Response(torch.tensor(ids), text, logprobs, entropy, truncated))
        return responses


def _start(folder: Path, options: ModelOptions, images: dict[str, Any], context: int) -> LLM:
    # Otherwise vLLM prints hundreds of lines on standard output, between the scores.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    try:
        from vllm import LLM
    except ImportError as cause:
        raise UserError(
            "--engine vllm needs vLLM in an environment of its own: pip install 'pivot-rl[vllm]' there, or leave "
            "--engine out to sample in this process"
        ) from cause
    return LLM(
        model=str(folder),
        dtype=options.dtype,
        max_model_len=context,
        limit_mm_per_prompt={"image": MAX_IMAGES, "video": 0},
        mm_processor_kwargs=images,
        enforce_eager=not torch.cuda.is_available(),
        disable_log_stats=True,
    )
