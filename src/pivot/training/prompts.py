"""The prompts of a run, and the expert demonstrations of CalibRL."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from pivot.config import Config, DataConfig
from pivot.config.datasets import PROCEDURAL, data_spec, is_procedural, load_set
from pivot.data import MEMORY, DataSet, resolve
from pivot.data.sources import named_splits
from pivot.data.template import PromptStyle
from pivot.errors import UserError
from pivot.models.encoding import PromptEncoder
from pivot.seeding import stable_seed
from pivot.tiny import procedural
from pivot.types import Prompt


@dataclass
class Prompts:
    """A set of prompts by id, and notes on what was left out."""

    name: str
    by_id: dict[str, Prompt]
    notes: tuple[str, ...] = ()
    sets: Mapping[str, list[str]] = field(default_factory=dict)
    """Training set -> the ids of its prompts."""
    held_out: Mapping[str, list[Prompt]] = field(default_factory=dict)
    """Training set, as `data.train` names it -> the prompts held out for validation, never trained on."""

    def __len__(self) -> int:
        return len(self.by_id)

    def without(self, ids: Collection[str], note: str) -> Prompts:
        """Without some prompts, and a note that says why."""
        kept = {name: prompt for name, prompt in self.by_id.items() if name not in ids}
        sets = {name: [i for i in members if i not in ids] for name, members in self.sets.items()}
        return replace(self, by_id=kept, notes=(*self.notes, note), sets=sets)


Rows = Sequence[Mapping[str, Any]]


def load_prompts(
    name: str, split: str | None, size: int | None, data: DataConfig, rows: Rows | None = None
) -> Prompts:
    """The prompts of one split, or of `rows` in memory; `notes` names the rows that cannot be used."""
    if name == MEMORY and rows is None:
        raise UserError(
            "this run trains on rows in memory, which its folder does not hold: continue it from Python with "
            "pivot.resume(RUN, data=ROWS)"
        )
    found = load_set(name, data, split, size, rows=rows)
    if is_procedural(name):
        return Prompts(f"{name}-{found.split}", {prompt.id: prompt for prompt in found.prompts})
    if not found.prompts:
        raise UserError(f"{name} has no usable row in split {found.split!r}: {found.summary()}")
    return Prompts(found.name, {prompt.id: prompt for prompt in found.prompts}, _notes(found))


def _notes(found: DataSet) -> tuple[str, ...]:
    """What the user should know about the rows, one sentence each."""
    notes = list(found.warnings)
    if found.skipped:
        named = "; ".join(f"{row.id}: {row.reason}" for row in found.skipped[:3])
        more = f"; and {len(found.skipped) - 3} more" if len(found.skipped) > 3 else ""
        notes.append(f"{len(found.skipped)} of {len(found.rows)} rows left out ({named}{more})")
    texts = sum(not prompt.images for prompt in found.prompts)
    if texts:
        notes.append(
            f"{texts} of {len(found.prompts)} rows of {found.name} have no image and are trained as text"
        )
    if found.num_duplicates:
        notes.append(
            f"{found.num_duplicates} rows of {found.name} repeat an id or a row; all are kept, numbered #2, #3, ..."
        )
    return tuple(notes)


def styled(prompts: Prompts, style: PromptStyle) -> Prompts:
    """The prompts as they are asked."""
    return replace(prompts, by_id={name: style.apply(prompt) for name, prompt in prompts.by_id.items()})


def training_prompts(config: Config, rows: Rows | None = None) -> Prompts:
    """The training sets with their held-out rows apart; an error if they cannot fill a step.

    `rows` are those of the set `memory`.
    """
    data, merged = config.data, Prompts("", {})
    held_out: dict[str, list[Prompt]] = {}
    sets: dict[str, list[str]] = {}
    names: list[str] = []
    for name in data.sets:
        own = rows if name == MEMORY else None
        found = _unlike(load_prompts(name, data.split or "train", data.size, data, own), names)
        found = styled(found, config.prompt.style)
        names.append(found.name)
        if data.holdout > 0 and data.validation is None and not has_validation(name, data):
            if _evaluates(config):
                found, held_out[name] = hold_out(found, data.holdout, data.validation_size)
            else:
                note = f"no rows of {found.name} are held out, since eval.every=0 evaluates nothing"
                found = replace(found, notes=(*found.notes, note))
        merged.by_id |= found.by_id
        merged.notes += found.notes
        sets[found.name] = list(found.by_id)
    prompts = replace(merged, name=" and ".join(names), sets=sets, held_out=held_out)
    need = config.train.prompts_per_step
    if len(prompts) < need:
        raise UserError(
            f"{prompts.name} has {len(prompts)} training prompts, but {too_few(len(prompts), config)}"
        )
    return prompts


def too_few(available: int, config: Config) -> str:
    """What a step needs, and the settings with which this many prompts are enough."""
    train = config.train
    return (
        f"a step needs train.prompts_per_step={train.prompts_per_step}; use more data, or --set "
        f"train.prompts_per_step={max(1, available)} --set train.minibatch_prompts="
        f"{max(1, min(train.minibatch_prompts, available))}"
    )


def _unlike(found: Prompts, names: Sequence[str]) -> Prompts:
    """The set with another name, in its ids too, if one of that name is there already."""
    if found.name not in names:
        return found
    number = next(n for n in itertools.count(2) if f"{found.name}-{n}" not in names)
    name = f"{found.name}-{number}"
    renamed = (replace(p, id=f"{name}{p.id.removeprefix(found.name)}") for p in found.by_id.values())
    return Prompts(name, {prompt.id: prompt for prompt in renamed}, found.notes)


def _evaluates(config: Config) -> bool:
    """Whether held-out rows would be evaluated."""
    return config.eval.every > 0 or config.eval.final_prompts != 0


def has_validation(name: str, data: DataConfig) -> bool:
    """Whether a set has a validation split of its own."""
    if name == MEMORY or is_procedural(name):
        return name != MEMORY
    known, spec = resolve(data_spec(name, data))
    if spec.path is not None:
        return data.validation_split in named_splits(Path(spec.path).expanduser())
    if known.expected:
        return data.validation_split in known.expected
    try:
        load_set(name, data, data.validation_split, 1)
    except UserError:
        return False
    return True


def hold_out(prompts: Prompts, share: float, most: int | None) -> tuple[Prompts, list[Prompt]]:
    """Set apart a share of the prompts, at least one: those whose ids have the smallest hashes.

    The choice depends on the ids alone, not on the order of the rows. Repeated rows (`ID`, `ID#2`) stay together.
    """
    repeats: dict[str, list[str]] = {}
    for prompt_id in prompts.by_id:
        first = prompt_id.rpartition("#")[0]
        repeats.setdefault(first if first in prompts.by_id else prompt_id, []).append(prompt_id)
    wanted = max(1, round(share * len(repeats)))
    wanted = min(wanted, len(repeats) - 1, wanted if most is None else most)
    chosen = sorted(repeats, key=lambda name: (stable_seed("holdout", name), name))[:wanted]
    ids = {prompt_id for name in chosen for prompt_id in repeats[name]}
    held_out = [prompt for prompt_id, prompt in prompts.by_id.items() if prompt_id in ids]
    if not held_out:
        return prompts, []
    note = (
        f"{len(held_out)} of {len(prompts)} rows of {prompts.name} are held out for validation, because it has no "
        "split for it (data.holdout=0 trains on all)"
    )
    return prompts.without(ids, note), held_out


def drop_long_prompts(prompts: Prompts, encoder: PromptEncoder, limit: int, track) -> Prompts:
    """Leave out prompts of more than `limit` tokens; prompts are never truncated."""
    long = [p.id for p in track(list(prompts.by_id.values())) if encoder.count_tokens(p) > limit]
    if not long:
        return prompts
    note = f"{len(long)} prompts are longer than rollout.max_prompt_tokens={limit} and left out ({', '.join(long[:3])})"
    return prompts.without(set(long), note)


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
        raise UserError(f"none of the {len(texts)} ids in data.experts is a prompt of {config.data.title}")
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
