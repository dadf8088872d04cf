"""The model card of a checkpoint, `model/README.md`, from the run's configuration and scores."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from pivot import __version__
from pivot.config import Config, to_dict
from pivot.data import TRAINING_SETS, template
from pivot.durable import write_bytes
from pivot.evaluation.scoring import read_scores
from pivot.evaluation.settings import comparability_notes
from pivot.models.naming import TINY
from pivot.runs.checkpoint import CheckpointStore

CARD = "README.md"


def write_card(run: Path, config: Config) -> Path | None:
    """Put the card into the run's newest checkpoint; None if there is none."""
    checkpoints = CheckpointStore(run).finished()
    if not checkpoints:
        return None
    newest = checkpoints[0]
    entries = read_scores(run / "eval" / "scores.json")
    path = newest.path / "model" / CARD
    write_bytes(path, model_card(config, entries, newest.step).encode())
    return path


def model_card(config: Config, entries: Sequence[Mapping[str, Any]], steps: int) -> str:
    """A Hugging Face model card: front matter, method, data, settings, scores, use, licence."""
    sections = (
        _front_matter(config),
        f"# {_title(config)}",
        _method(config, steps),
        _settings(config),
        _scores(entries),
        _use(config),
        _licence(config),
        _whole_configuration(config),
    )
    return "\n\n".join(sections) + "\n"


def _front_matter(config: Config) -> str:
    base, data = _hub_id(config.model.path), _data_ids(config)
    known: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "image-text-to-text",
        "tags": ["reinforcement-learning", "rlvr", "vision-language", "pivot", config.method.name],
        "license": "apache-2.0" if config.model.path in TINY else "other",
    }
    if base is not None:
        known |= {"base_model": base, "license_name": "that-of-the-base-model"}
        known["license_link"] = f"https://huggingface.co/{base}"
    if data:
        known["datasets"] = data
    return f"---\n{yaml.safe_dump(known, sort_keys=False).strip()}\n---"


def _title(config: Config) -> str:
    return f"{Path(config.model.path).name} trained with {config.method.name} on {_data_names(config)}"


def _method(config: Config, steps: int) -> str:
    base = config.model.path
    trained = (
        f"low-rank adapters (rank {config.model.lora_rank}), merged in"
        if config.model.lora_rank
        else "all weights"
    )
    if config.model.freeze_vision:
        trained += ", the vision tower frozen"
    return (
        f"Trained from `{base}` by reinforcement learning with verifiable rewards: method `{config.method.name}`, "
        f"{_length(config, steps)}, {trained}. Data: `{config.data.title}`, split "
        f"`{config.data.split or 'train'}`"
        f"{'' if config.data.size is None else f', at most {config.data.size} prompts'}. "
        f"Written by pivot-rl {__version__}; `pivot methods` describes the method."
    )


def _length(config: Config, steps: int) -> str:
    budget = config.train.max_responses
    return f"{steps} of {config.train.steps} steps" + (f" (at most {budget} responses)" if budget else "")


def _settings(config: Config) -> str:
    limits = (config.model.min_pixels, config.model.max_pixels)
    rows = {
        "prompts per step / per update": f"{config.train.prompts_per_step} / {config.train.minibatch_prompts}",
        "responses per prompt": config.rollout.responses,
        "learning rate": config.train.lr,
        "sampling": f"temperature {config.rollout.temperature}, top_p {config.rollout.top_p}",
        "response tokens": config.rollout.max_tokens,
        "image pixels": "as in the model's files"
        if limits == (None, None)
        else f"{limits[0]} to {limits[1]}",
        "image corruption": config.corruption.kind,
        "reward": " + ".join(config.reward.functions) or f"exact match ({config.reward.grader})",
        "dtype": config.model.dtype,
        "seed": config.train.seed,
    }
    return "## Settings\n\n" + _table(
        ("setting", "value"), [(name, str(value)) for name, value in rows.items()]
    )


def _scores(entries: Sequence[Mapping[str, Any]]) -> str:
    if not entries:
        return "## Scores\n\nThis run measured nothing."
    head = ["set", "when", "images", "prompts", "samples", "accuracy, %", "95% interval"]
    notes = comparability_notes([{str(entry["name"]): [entry]} for entry in entries])
    noted = any(notes)
    rows = [
        [
            str(entry["name"]),
            str(entry.get("when") or "evaluated"),
            "blank" if entry.get("blank") else "shown",
            str(entry["prompts"]),
            str(entry["samples"]),
            f"{100 * entry['accuracy']:.2f}",
            "{:.2f} to {:.2f}".format(*(100 * bound for bound in entry["interval"])),
            *[note] * noted,
        ]
        for entry, note in zip(entries, notes, strict=True)
    ]
    head += ["note"] * noted
    note = "Accuracy is the mean over prompts of the mean over samples, at temperature 1.0; exact match."
    return f"## Scores\n\n{_table(head, rows)}\n\n{note}"


def _use(config: Config) -> str:
    asked = config.prompt
    system = template.SYSTEM if asked.system is None else asked.system
    turn = f"<image>QUESTION\n\n{template.INSTRUCTION}" if asked.template is None else asked.template
    return (
        "## Use\n\n"
        "`AutoModelForImageTextToText`, `AutoProcessor` and vLLM load this folder. The model was trained with this "
        "template:\n\n"
        f"```\nsystem: {system}\nuser:   {turn}\n```"
    )


def _licence(config: Config) -> str:
    if config.model.path in TINY:
        return "## Licence\n\nWeights and code: Apache-2.0. A toy model for testing methods."
    return (
        "## Licence\n\n"
        f"These weights derive from `{config.model.path}`: its licence applies to them. The terms of the training data "
        f"(`{config.data.title}`) may apply too. Check both before you publish or use this model."
    )


def _whole_configuration(config: Config) -> str:
    written = json.dumps(to_dict(config), indent=2, ensure_ascii=False)
    return f"<details><summary>The whole configuration</summary>\n\n```json\n{written}\n```\n\n</details>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def _data_names(config: Config) -> str:
    return " and ".join(Path(name).name for name in config.data.sets)


def _data_ids(config: Config) -> list[str]:
    """The hub ids of the training sets that have one."""
    found = [
        TRAINING_SETS[name].hub_id if name in TRAINING_SETS else _hub_id(name) for name in config.data.sets
    ]
    return [hub_id for hub_id in found if hub_id is not None]


def _hub_id(name: str) -> str | None:
    """`owner/name`, unless it is a local path."""
    is_path = name.startswith((".", "/", "~")) or Path(name).exists()
    return name if name.count("/") == 1 and not is_path else None
