"""Kernel launches and host syncs of one decoded token with 36 layers, counted operation by operation on a CPU.

    python -m benchmarks.launches

Views launch nothing and are left out. On a GPU every other operation is one kernel or a few, and a sync makes the host
wait until the device has caught up. The width of the model does not matter to either count.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForImageTextToText

from pivot.models.loading import load_policy, prepare_forward, resolve_model
from pivot.models.policy import Policy
from pivot.sampling import SampleRequest, Sampling, native
from pivot.tiny import procedural

LAYERS, PROMPTS, RESPONSES, TOKENS = 36, 5, 5, 33
SYNCS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::equal"}
VIEWS = {
    *("aten::view", "aten::_unsafe_view", "aten::transpose", "aten::t", "aten::slice", "aten::select"),
    *("aten::unsqueeze", "aten::squeeze", "aten::expand", "aten::permute", "aten::split", "aten::alias"),
    *("aten::split_with_sizes", "aten::detach", "aten::as_strided", "aten::unbind", "aten::reshape"),
}


class Count(TorchDispatchMode):
    """Operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func._schema.name] += 1
        return func(*args, **(kwargs or {}))


def main() -> int:
    launches, syncs = per_token()
    print(f"{LAYERS} layers, {PROMPTS} prompts x {RESPONSES} responses, top-p 0.99")
    print(f"launches per token  {launches:8.1f}")
    print(f"host syncs per token {syncs:7.2f}  (every {native.GPU_CHECK_EVERY} tokens, as on a GPU)")
    return 0


def per_token(layers: int = LAYERS) -> tuple[float, float]:
    """Means over a whole decoding; the prefill and the first token are not counted."""
    policy = _deep_policy(layers)
    prompts = [policy.encoder.encode(prompt) for prompt in procedural.dataset("train", PROMPTS)]
    # As on a GPU: it sorts for top-p, and the host looks rarely. No sequence ends early.
    sampling = Sampling(top_p=0.99, max_tokens=TOKENS, min_tokens=TOKENS)
    decoder = native._Decoder(policy, prompts, SampleRequest(RESPONSES, sampling, (0,)), 2**22)
    with torch.no_grad():
        hidden_ND = decoder._refilled(None)
        assert hidden_ND is not None
        assert decoder.continuation is not None
        with Count() as count, patch.object(native, "NUCLEUS", 2**31):
            for tick in range(1, TOKENS):
                tokens_N = decoder._draw(hidden_ND)
                decoder.tick += 1
                if tick % native.GPU_CHECK_EVERY == 0:
                    tokens_N = decoder._compacted(tokens_N)
                hidden_ND = decoder.continuation.advance(tokens_N)
    kernels = sum(number for name, number in count.calls.items() if name not in VIEWS)
    syncs = sum(count.calls[name] for name in SYNCS)
    return kernels / (TOKENS - 1), syncs / (TOKENS - 1)


def _deep_policy(layers: int) -> Policy:
    """The tiny model's parts with more layers."""
    tiny, config = load_policy("tiny"), AutoConfig.from_pretrained(resolve_model("tiny"))
    text = config.get_text_config()
    text.num_hidden_layers, text.layer_types = layers, ["full_attention"] * layers
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="sdpa").float().eval()
    prepare_forward(model)
    return Policy(model, tiny.tokenizer, tiny.encoder)


if __name__ == "__main__":
    sys.exit(main())
