"""`python -m experiments.headroom.speed`: what a model of each size costs to pretrain, on one core."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLForConditionalGeneration

from experiments.headroom.panels import problem, true_chain
from pivot.tiny.examples import Batch, Row, batches_of, make_row
from pivot.tiny.model import build_model
from pivot.tiny.pretrain import Phase, Plan
from pivot.tiny.tokenizer import build_tokenizer


@dataclass(frozen=True)
class Size:
    """The width and depth of a model."""

    hidden: int
    layers: int
    vision_layers: int


SIZES = (Size(256, 4, 2), Size(256, 5, 3), Size(256, 7, 3))
STEPS = 5


def panel_row(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Row:
    """A right chain on four panels of the split `pretrain`."""
    found = problem("pretrain", rng.randrange(1 << 40))
    return make_row(tokenizer, found.picture, found.question, true_chain(found, rng))


def main() -> int:
    torch.set_num_threads(1)
    tokenizer = build_tokenizer()
    heads = (
        "size",
        "parameters",
        "chain, tokens",
        "rows per processor second",
        "tokens learned per processor second",
    )
    print(f"| {' | '.join(heads)} |\n| {' | '.join(['---'] * len(heads))} |")
    for size in SIZES:
        model = build_model(
            tokenizer, hidden=size.hidden, layers=size.layers, vision_layers=size.vision_layers
        )
        stream = batches_of(lambda rng: panel_row(tokenizer, rng), Plan().batch_size, random.Random(0))
        rate, length = pretraining_speed(model, tokenizer, list(islice(stream, STEPS + 1)))
        millions = sum(weight.numel() for weight in model.parameters()) / 1e6
        shape = f"{size.hidden}, {size.layers}, {size.vision_layers}"
        print(f"| {shape} | {millions:.1f}M | {length:.0f} | {rate:.1f} | {rate * length:.0f} |", flush=True)
    return 0


def pretraining_speed(
    model: Qwen2_5_VLForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, batches: Sequence[Batch]
) -> tuple[float, float]:
    """Rows per processor second of supervised steps, and the mean length of a response."""
    phase = Phase(tokenizer, model, lambda *_: "", "speed", Plan(), stream=iter(batches))
    phase.run([1e-4], lambda *_: None, weighted=True)
    began = time.process_time()
    phase.run([1e-4] * STEPS, lambda *_: None, weighted=True)
    spent = time.process_time() - began
    rows = sum(len(batch.ids_BL) for batch in batches[1:])
    return rows / spent, sum(float((batch.targets_BL >= 0).sum()) for batch in batches[1:]) / rows


if __name__ == "__main__":
    sys.exit(main())
