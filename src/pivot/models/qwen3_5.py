"""Qwen3.5: Qwen3-VL's images and positions before a language model most of whose layers are recurrent.

A recurrent layer carries one state from token to token, so siblings cannot share their prompt in one row: responses are
scored on repeated rows, and decoding copies each prompt's state once per response.
"""

from __future__ import annotations

from typing import Any, ClassVar

from transformers.cache_utils import DynamicCache

from pivot.models.decoding import Continuation, PrefilledPrompts, RepeatedContinuation
from pivot.models.qwen_vl import QwenVL, prepare_vision


class Qwen35(QwenVL):
    """Dense and mixture-of-experts models."""

    shares_prefixes: ClassVar[bool] = False
    published: ClassVar = {
        "Qwen3.5-9B": lambda: {"model_type": "qwen3_5", "vision_config": {"out_hidden_size": 4096}},
        "Qwen3.5-35B-A3B": lambda: {"model_type": "qwen3_5_moe", "vision_config": {"out_hidden_size": 2048}},
    }
    """transformers has the language models' sizes as its defaults."""

    @classmethod
    def prepare(cls, model: Any) -> None:
        prepare_vision(model)

    def new_cache(self, model: Any) -> Any:
        """With a state where a layer is recurrent, with keys and values elsewhere."""
        return DynamicCache(config=model.config.get_text_config())

    def continuation(
        self, model: Any, prompts: PrefilledPrompts, num_samples: int, max_tokens: int
    ) -> Continuation:
        return RepeatedContinuation(self, model, prompts, num_samples)

    @classmethod
    def adapter_targets(cls) -> str:
        """Also the projections of the recurrent layers."""
        names = r"((q|k|v|o|gate|up|down)_proj|in_proj_(qkv|z)|out_proj)"
        return rf"model\.{cls.text_name}\..*\.{names}"
