"""The prompts of a run, and the expert demonstrations of CalibRL."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pivot.config import Config, DataConfig
from pivot.data import MEMORY, DataSpec, load
from pivot.errors import UserError
from pivot.models.encoding import PromptEncoder
from pivot.tiny import procedural
from pivot.types import Prompt

PROCEDURAL = "tiny"


@dataclass
class Prompts:
    """A set of prompts by id, and notes on what was left out."""

    name: str
    by_id: dict[str, Prompt]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.by_id)


Rows = Sequence[Mapping[str, Any]]


def load_prompts(
    name: str, split: str, size: int | None, data: DataConfig, rows: Rows | None = None
) -> Prompts:
    """The prompts of one split, or of `rows` in memory; `notes` names the rows that cannot be used."""
    if name == MEMORY and rows is None:
        raise UserError(
            "this run trains on rows in memory, which its folder does not hold: continue it from Python with "
            "pivot.resume(RUN, data=ROWS)"
        )
    if name == PROCEDURAL:
        found = procedural.dataset(split, size or 512, tasks=data.tasks or None)
        return Prompts(f"{name}-{split}", {prompt.id: prompt for prompt in found})
    spec = DataSpec(
        name=name,
        split=split,
        image_column=data.image_column,
        problem_column=data.problem_column,
        answer_column=data.answer_column,
        id_column=data.id_column,
        limit=size,
        bad_rows=data.bad_rows,
        check_images=data.check_images,
        rows=None if rows is None else tuple(rows),
    )
    found = load(spec)
    notes = tuple(found.warnings)
    if found.skipped:
        named = "; ".join(f"{row.id}: {row.reason}" for row in found.skipped[:3])
        more = f"; and {len(found.skipped) - 3} more" if len(found.skipped) > 3 else ""
        notes += (
            f"{len(found.skipped)} of {len(found.skipped) + len(found.prompts)} rows left out ({named}{more})",
        )
    if not found.prompts:
        raise UserError(
            f"{name} has no usable row in split {split!r}; `pivot data` shows why each was left out"
        )
    return Prompts(found.name, {prompt.id: prompt for prompt in found.prompts}, notes)


def training_prompts(config: Config, rows: Rows | None = None) -> Prompts:
    """The training set, from `rows` where `data.train` is `memory`; an error if it cannot fill a step."""
    prompts = load_prompts(config.data.train, config.data.split, config.data.size, config.data, rows)
    need = config.train.prompts_per_step
    if len(prompts) < need:
        raise UserError(
            f"{prompts.name} has {len(prompts)} prompts, but train.prompts_per_step is {need}; "
            f"lower it to {len(prompts)} or less, or use more data"
        )
    return prompts


def drop_long_prompts(prompts: Prompts, encoder: PromptEncoder, limit: int, track) -> Prompts:
    """Leave out prompts of more than `limit` tokens; prompts are never truncated."""
    long = [p.id for p in track(list(prompts.by_id.values())) if encoder.count_tokens(p) > limit]
    if not long:
        return prompts
    kept = {name: p for name, p in prompts.by_id.items() if name not in set(long)}
    note = f"{len(long)} prompts are longer than rollout.max_prompt_tokens={limit} and left out ({', '.join(long[:3])})"
    return Prompts(prompts.name, kept, (*prompts.notes, note))


def expert_demonstrations(
    config: Config, prompts: Mapping[str, Prompt], encoder: PromptEncoder
) -> dict[str, torch.Tensor]:
    """Token ids of expert responses by prompt id, with the end of turn; empty unless the method needs them."""
    if not config.method.has_experts:
        return {}
    if config.data.experts is not None:
        texts = _read_experts(Path(config.data.experts))
    elif config.data.train == PROCEDURAL:
        texts = {name: procedural.solution(prompt) for name, prompt in prompts.items()}
    else:
        raise UserError(
            f"method {config.method.name} needs expert demonstrations, but data.experts is not set; "
            'set it to a JSON lines file of {"id": ..., "response": ...}'
        )
    known = {name: text for name, text in texts.items() if name in prompts}
    if not known:
        raise UserError(f"none of the {len(texts)} ids in data.experts is a prompt of {config.data.train}")
    return {name: tokenize_response(text, encoder) for name, text in known.items()}


def tokenize_response(text: str, encoder: PromptEncoder) -> torch.Tensor:
    """Token ids of a response with the end of turn; text never becomes a control token."""
    tokenizer = encoder.tokenizer
    ids: Sequence[int] = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    return torch.tensor([*ids, tokenizer.eos_token_id])


def _read_experts(path: Path) -> dict[str, str]:
    texts: dict[str, str] = {}
    number = 0
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            number += 1
            row = json.loads(line)
            texts[str(row["id"])] = str(row["response"])
    except OSError as cause:
        raise UserError(f"data.experts: cannot read {path} ({cause.strerror})") from cause
    except (ValueError, KeyError, TypeError) as cause:
        raise UserError(
            f'data.experts: line {number} of {path} is not {{"id": ..., "response": ...}}'
        ) from cause
    return texts
