"""Sampling with vLLM: the same prompts, pixels, banned tokens and end-of-turn tokens as the native decoder.

`VllmSampler` reads a model's folder and runs in processes of its own. `PolicyVllm` lives in the process that trains: it
receives the policy's weights and gives its GPU memory back while the policy is scored and updated.

This is the only file that imports vLLM (extra `vllm`). Images are resized by the policy's own processor before vLLM
receives them, so that both samplers see the same pixels however vLLM's processor resizes.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from PIL import Image

from pivot.data.images import open_rgb
from pivot.errors import UserError
from pivot.models.corruption import GREY
from pivot.models.loading import ModelOptions, load_tokenizer_only, saved_weights
from pivot.models.policy import Policy
from pivot.sampling.base import SampleRequest, SamplerName
from pivot.seeding import stable_seed
from pivot.types import PreparedPrompt, Prompt, Response

if TYPE_CHECKING:
    from vllm import LLM, RequestOutput, SamplingParams

CHUNK = 512
"""Prompts per call: vLLM batches them on its own, and an evaluation that crashes loses at most these."""
MAX_CONTEXT = 32768
"""Largest context (prompt and response) that vLLM reserves its cache for."""
MAX_IMAGES = 16
NEVER = -100.0
"""The strongest logit bias that vLLM accepts."""
SEEDS = 2**62
"""Seeds stay below this, so that vLLM can add a sample's index."""
CPU_CACHE = 2**30
"""Bytes of the key/value cache without a GPU; VLLM_CPU_KVCACHE_SPACE overrides it."""
CPU_BATCH = 4096
"""Tokens of prompts that are processed at once without a GPU."""

LogprobsMode = Literal["raw_logprobs", "processed_logprobs"]
"""vLLM's log-probs before or after temperature, top-p, top-k and banned tokens."""


class VllmSampler:
    """Draws responses with vLLM from a model's folder.

    The log-probs are vLLM's own and kept apart from the policy's; there are no entropies. Draws depend on (key, prompt,
    sample), but differ from the native decoder's.
    """

    name: SamplerName = "vllm"

    def __init__(self, folder: Path, options: ModelOptions | None = None) -> None:
        options = options or ModelOptions()
        self.policy = load_tokenizer_only(folder, options)
        self._with_logprobs = True
        self._llm = _start(str(folder), self.policy, options)

    def sample(
        self, prompts: Sequence[Prompt] | Sequence[PreparedPrompt], request: SampleRequest
    ) -> Iterator[tuple[int, list[Response]]]:
        for start in range(0, len(prompts), CHUNK):
            chunk = [p if isinstance(p, Prompt) else p.prompt for p in prompts[start : start + CHUNK]]
            inputs = [self._input(prompt, request.blank) for prompt in chunk]
            settings = [self._parameters(prompt, request) for prompt in chunk]
            outputs = self._llm.generate(inputs, settings, use_tqdm=False)
            for index, output in enumerate(outputs):
                yield start + index, self._responses(output)

    def close(self) -> None:
        """End vLLM and free its memory."""
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        self._llm.llm_engine.engine_core.shutdown()
        del self._llm
        cleanup_dist_env_and_memory()

    def _input(self, prompt: Prompt, blank: bool) -> dict[str, Any]:
        encoder = self.policy.encoder
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
            stop_token_ids=self.policy.end_ids,
            logit_bias=dict.fromkeys(self.policy.banned_ids, NEVER),
            logprobs=0 if self._with_logprobs else None,
        )

    def _responses(self, output: RequestOutput) -> list[Response]:
        responses = []
        for drawn in sorted(output.outputs, key=lambda one: one.index):
            ids = list(drawn.token_ids)
            text = str(self.policy.tokenizer.decode(ids, skip_special_tokens=True))
            response = Response(torch.tensor(ids), text, None, None, drawn.finish_reason != "stop")
            if drawn.logprobs is not None:
                known = [at[i].logprob for i, at in zip(ids, drawn.logprobs, strict=True)]
                response.sampler_logprobs_T = torch.tensor(known)
            responses.append(response)
        return responses


class PolicyVllm(VllmSampler):
    """vLLM in the process that trains `policy`, at the policy's current weights.

    vLLM starts from the folder that the policy was loaded from and receives the policy's weights before it first
    samples. On a GPU it sleeps at level 2, which drops its weights and its cache: both would be stale anyway. Each call
    of `sample` starts with empty caches, so that responses depend on weights and request alone.
    """

    def __init__(
        self, policy: Policy, options: ModelOptions, memory_share: float, logprobs: LogprobsMode | None
    ) -> None:
        self.policy = policy
        self._with_logprobs = logprobs is not None
        self._can_sleep = policy.device.type == "cuda"
        self._asleep, self._stale = False, True
        more = {"enable_sleep_mode": True, "gpu_memory_utilization": memory_share} if self._can_sleep else {}
        try:
            with _beside_training():
                self._llm = _start(
                    policy.model.name_or_path,
                    policy,
                    options,
                    logprobs_mode=logprobs or "raw_logprobs",
                    **more,
                )
        except ValueError as cause:
            reason = str(cause).strip().splitlines()[0].rstrip(".")
            raise UserError(
                f"vLLM does not start beside the policy ({reason}); set sampling.memory_share (now {memory_share}) to "
                "what the GPU has left, or use --sampler native"
            ) from cause

    def sample(
        self, prompts: Sequence[Prompt] | Sequence[PreparedPrompt], request: SampleRequest
    ) -> Iterator[tuple[int, list[Response]]]:
        self._wake()
        self._forget()
        yield from super().sample(prompts, request)

    def weights_changed(self) -> None:
        self._stale = True

    def sleep(self) -> None:
        if self._can_sleep and not self._asleep:
            self._llm.sleep(level=2)
            self._asleep = self._stale = True

    def _wake(self) -> None:
        """Weights first: the cache is allocated after the copies that loading makes are gone."""
        if self._asleep:
            # vLLM allocates outside torch's cache, which holds what training has freed.
            torch.cuda.empty_cache()
            self._llm.wake_up(tags=["weights"])
        if self._stale:
            self._load()
        if self._asleep:
            self._llm.wake_up(tags=["kv_cache"])
        self._asleep = self._stale = False

    def _load(self) -> None:
        """Give vLLM the policy's weights, parameter by parameter; vLLM fuses and repacks them layer by layer."""
        weights = saved_weights(self.policy.model)
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})

    def _forget(self) -> None:
        """Drop what was computed from earlier weights: keys and values, processed images, image features."""
        emptied = self._llm.reset_prefix_cache()
        assert emptied, "no request is running"
        self._llm.reset_mm_cache()
        self._llm.llm_engine.reset_encoder_cache()


def _start(model: str, policy: Policy, options: ModelOptions, **more: Any) -> LLM:
    # Otherwise vLLM prints hundreds of lines on standard output, between the scores.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    try:
        from vllm import LLM
    except ImportError as cause:
        raise UserError(
            "the vllm sampler needs vLLM in an environment of its own: pip install 'pivot-rl[vllm]' there, or use "
            "--sampler native"
        ) from cause
    on_gpu = torch.cuda.is_available()
    context = min(MAX_CONTEXT, policy.model.config.get_text_config().max_position_embeddings)
    if not on_gpu:
        # vLLM cannot cut the prompt of a request with a seed: torch's generators on CPUs have no offset.
        whole = {"enable_chunked_prefill": False, "max_num_batched_tokens": max(context, CPU_BATCH)}
        # Siblings share whole blocks of their prompt, and by default a block is longer than many prompts.
        more |= {"enforce_eager": True, "kv_cache_memory_bytes": CPU_CACHE, "block_size": 32, **whole}
    return LLM(
        model=model,
        dtype=options.dtype,
        trust_remote_code=options.trust_remote_code,
        max_model_len=context,
        limit_mm_per_prompt={"image": MAX_IMAGES, "video": 0},
        mm_processor_kwargs=policy.family.processor_settings(),
        disable_log_stats=True,
        **more,
    )


@contextmanager
def _beside_training() -> Iterator[None]:
    """vLLM starts in this process and leaves torch's threads as they were."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    set_num_threads, num_threads = torch.set_num_threads, torch.get_num_threads()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        torch.set_num_threads = set_num_threads  # vLLM on CPUs replaces it
        torch.set_num_threads(num_threads)
