"""Kernel launches and host syncs of one decoded token with 36 layers, counted operation by operation.

    python -m benchmarks.launches

Views launch nothing and are left out. On a GPU every other operation is one kernel or a few, and a sync makes the host
wait until the device has caught up. The width of the model does not matter to either count. With a CUDA build of torch
(`make test-cuda`) also counts what a GPU would be given in bfloat16; no GPU is needed, and reading a value would fail.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForImageTextToText

from benchmarks.pretend_gpu import PretendGpu, on_gpu, replace_tensors
from pivot.models.family import ImageFeatures
from pivot.models.loading import load_policy, prepare_forward, resolve_model
from pivot.models.policy import Policy
from pivot.sampling import SampleRequest, Sampling, drawing
from pivot.sampling.decoder import GPU_CHECK_EVERY, Decoder
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


class CountingFakes(FakeTensorMode):
    """The same for tensors without values; what an operation is made of internally does not count."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.calls: Counter[str] = Counter()
        self._inside = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._inside:
            return super().__torch_dispatch__(func, types, args, kwargs)
        self.calls[func._schema.name] += 1
        self._inside = True
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            self._inside = False


def main() -> int:
    print(f"{LAYERS} layers, {PROMPTS} prompts x {RESPONSES} responses, top-p 0.99")
    launches, syncs = per_token()
    print(f"launches per token  {launches:8.1f}  (CPU, float32)")
    print(f"  some have ended   {per_token(ended=True)[0]:8.1f}")
    print(f"host syncs per token {syncs:7.2f}  (every {GPU_CHECK_EVERY} tokens, as on a GPU)")
    if torch.version.cuda is None:
        print("launches on a GPU: needs a CUDA build of torch (make test-cuda)")
    else:
        print(f"launches per token  {per_token_on_gpu():8.1f}  (CUDA, bfloat16, without values)")
    return 0


@torch.no_grad()
def per_token(layers: int = LAYERS, *, ended: bool = False) -> tuple[float, float]:
    """Launches and syncs, means over a whole decoding; the prefill and the first token are not counted.

    `ended`: every fourth response has left the batch, so that prompts have different numbers of them.
    """
    decoder = _decoder(_deep_policy(layers))
    hidden_ND = decoder._refilled(None)
    assert hidden_ND is not None
    assert decoder.continuation is not None
    if ended:
        staying = (torch.arange(len(hidden_ND)) % 4 > 0).nonzero().squeeze(-1)
        decoder.continuation.keep(staying)
        decoder.rows, hidden_ND = decoder.rows.select(staying), hidden_ND[staying]
    # As on a GPU: it sorts for top-p, and the host looks rarely.
    with Count() as count, patch.object(drawing, "LIKELIEST", 2**31):
        for tick in _tokens(decoder, hidden_ND):
            if tick % GPU_CHECK_EVERY == 0:
                decoder._compacted(torch.zeros(len(decoder.rows)))
    syncs = sum(count.calls[name] for name in SYNCS)
    return _launches(count.calls), syncs / (TOKENS - 1)


@torch.no_grad()
def per_token_on_gpu(layers: int = LAYERS) -> float:
    """Launches, as operators choose their form for a GPU."""
    policy, mode = _deep_policy(layers), CountingFakes()
    decoder = _decoder(policy)
    policy.features(decoder.prompts)  # the tower reads the images' sizes
    for name, images in policy._features.items():
        policy._features[name] = [ImageFeatures(on_gpu(mode, *image.tokens_ND.shape)) for image in images]
    replace_tensors(policy.model.bfloat16(), lambda tensor: on_gpu(mode, *tensor.shape, dtype=tensor.dtype))
    with PretendGpu(mode):
        decoder = _decoder(policy)
        hidden_ND = decoder._refilled(None)
        assert hidden_ND is not None
        mode.calls.clear()
        for _ in _tokens(decoder, hidden_ND):
            pass
    return _launches(mode.calls)


def _decoder(policy: Policy) -> Decoder:
    """No sequence ends early."""
    prompts = [policy.encoder.encode(prompt) for prompt in procedural.dataset("train", PROMPTS)]
    sampling = Sampling(top_p=0.99, max_tokens=TOKENS, min_tokens=TOKENS)
    return Decoder(policy, prompts, SampleRequest(RESPONSES, sampling, (0,)), 2**22)


def _tokens(decoder: Decoder, hidden_ND: Tensor) -> Iterator[int]:
    """All tokens but the last."""
    assert decoder.continuation is not None
    for tick in range(1, TOKENS):
        tokens_N = decoder._draw(hidden_ND)
        decoder.tick += 1
        yield tick
        hidden_ND = decoder.continuation.advance(tokens_N)


def _launches(calls: Counter[str]) -> float:
    kernels = {name: number for name, number in calls.items() if name.startswith("aten::")}
    return sum(number for name, number in kernels.items() if name not in VIEWS) / (TOKENS - 1)


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
