"""Supervised examples for pretraining: an endless, reproducible stream of batches of similar length."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from pivot.data import template
from pivot.tiny import procedural
from pivot.tiny.forward import NUM_IMAGE_TOKENS, patches, side_of
from pivot.tiny.procedural.scene import Picture, Scene

Respond = Callable[[Scene, random.Random], str]

IGNORED = -100
BATCHES_PER_POOL = 16
"""Batches that are drawn together and split by length, to keep padding small."""


@dataclass(frozen=True)
class Batch:
    """Right-padded rows."""

    patches_BNX: torch.Tensor
    ids_BL: torch.Tensor
    targets_BL: torch.Tensor
    """The next token if it belongs to the response, else IGNORED."""

    def percepts_BL(self, equals: int, full_stop: int) -> torch.Tensor:
        """True in the sentence that states the percepts, from its first equals sign to its full stop."""
        begun = (self.targets_BL == equals).cumsum(1) > 0
        ended = ((self.targets_BL == full_stop) & begun).cumsum(1) > 0
        return begun & ~ended


def prompt_ids(
    tokenizer: PreTrainedTokenizerFast, question: str, num_image_tokens: int = NUM_IMAGE_TOKENS
) -> list[int]:
    """The tokens of a prompt with one image in front of its question."""
    image = "<|image_pad|>" * num_image_tokens
    return tokenizer.encode(
        f"<|im_start|>system\n{template.SYSTEM}<|im_end|>\n<|im_start|>user\n<|vision_start|>{image}<|vision_end|>"
        f"{template.user_text(question)}<|im_end|>\n<|im_start|>assistant\n"
    )


def image_start(tokenizer: PreTrainedTokenizerFast) -> int:
    """Index of the first image token, the same in every row."""
    return prompt_ids(tokenizer, "").index(tokenizer.encode("<|image_pad|>")[0])


def batches(
    tokenizer: PreTrainedTokenizerFast, respond: Respond, batch_size: int, seed: str
) -> Iterator[Batch]:
    """Endless batches from the pretrain split; the seed fixes their order and the responses."""
    tasks = tuple(procedural.TASKS)

    def draw(rng: random.Random) -> Row:
        scene = procedural.scene(rng.choice(tasks), "pretrain", rng.randrange(1 << 40))
        return make_row(tokenizer, scene.picture, scene.question, respond(scene, rng))

    return batches_of(draw, batch_size, random.Random(seed))


def batches_of(draw: Callable[[random.Random], Row], batch_size: int, rng: random.Random) -> Iterator[Batch]:
    """Endless batches of rows that are drawn one after the other, BATCHES_PER_POOL batches at a time."""
    while True:
        rows = [draw(rng) for _ in range(BATCHES_PER_POOL * batch_size)]
        rows.sort(key=lambda row: len(row.prompt) + len(row.response))
        chunks = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
        rng.shuffle(chunks)
        yield from map(_collate, chunks)


@dataclass(frozen=True)
class Row:
    """An image, a prompt and the response that is learned."""

    patches: np.ndarray
    prompt: list[int]
    response: list[int]


def make_row(tokenizer: PreTrainedTokenizerFast, picture: Picture, question: str, response: str) -> Row:
    """A row of one square image, whose number of tokens follows from its size."""
    seen = patches(picture.render())
    return Row(
        patches=seen,
        prompt=prompt_ids(tokenizer, question, side_of(len(seen)) ** 2),
        response=tokenizer.encode(response + "<|im_end|>"),
    )


def _collate(rows: list[Row]) -> Batch:
    longest = max(len(row.prompt) + len(row.response) for row in rows)
    ids = torch.zeros(len(rows), longest - 1, dtype=torch.long)
    targets = torch.full_like(ids, IGNORED)
    for place, row in enumerate(rows):
        whole = torch.tensor(row.prompt + row.response)
        ids[place, : len(whole) - 1] = whole[:-1]
        targets[place, len(row.prompt) - 1 : len(whole) - 1] = whole[len(row.prompt) :]
    return Batch(torch.from_numpy(np.stack([row.patches for row in rows])), ids, targets)
