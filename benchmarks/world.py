"""The work that contenders share: the shipped tiny model, 64 procedural prompts, and how they are rewarded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES, every_other
from pivot import recipes
from pivot.config import apply_settings
from pivot.config.methods import settings_for
from pivot.data.template import SYSTEM, user_text
from pivot.engines.local import LocalEngine, load_model
from pivot.experience import StoredResponse
from pivot.method import preset
from pivot.models.loading import resolve_model
from pivot.training import build
from pivot.training.clock import PhaseClock
from pivot.training.prompts import training_prompts
from pivot.training.selection import Quotas, Selection
from pivot.training.trainer import Trainer
from pivot.types import Prompt, Reward


@dataclass(frozen=True)
class Work:
    """The size of a step's work where it is not the case's own."""

    prompts: int | None = None
    responses: int | None = None
    tokens: int | None = None
    """Of every response; None: as the case says."""
    image_side: int | None = None
    """Pixels to which images are enlarged; None: as they are drawn."""
    vocabulary: int | None = None
    """Rows to which the embedding is enlarged; None: as it is."""


def make_trainer(method: str, case: str, *settings: str, work: Work | None = None) -> Trainer:
    """A trainer on the shared work; its weights hardly move."""
    work, shape = work or Work(), CASES[case]
    prompts, responses = work.prompts or shape.prompts, work.responses or shape.responses
    min_tokens = shape.min_tokens if work.tokens is None else work.tokens
    config = apply_settings(
        replace(recipes.get(recipe_of(case)), method=preset(method)),
        [
            f"train.prompts_per_step={prompts}", f"train.minibatch_prompts={prompts}", "train.lr=1e-7",
            f"rollout.responses={responses}", f"rollout.max_tokens={work.tokens or shape.max_tokens}",
            f"rollout.top_p={shape.top_p}", "rollout.max_prompt_tokens=4096", f"data.size={shape.num_prompts}",
            *settings_for(preset(method), ["method.warmup_share=0"]), *settings,
        ],
    )  # fmt: skip
    if work.image_side:  # the tiny model's own limit would scale them down again
        config = apply_settings(config, [f"model.max_pixels={work.image_side**2}"])
    judge = _EveryOther() if min_tokens else build.build_judge(config)
    policy = load_model(config)
    if work.vocabulary:
        policy.model.resize_token_embeddings(work.vocabulary, mean_resizing=False)
    by_id = training_prompts(config).by_id
    if work.image_side:
        by_id = {name: _enlarged(prompt, work.image_side) for name, prompt in by_id.items()}
    engine = LocalEngine(config, policy, load_model(config) if config.method.needs_reference else None)
    trainer = build.build_trainer(config, engine, by_id, judge, PhaseClock())
    sampling = replace(trainer.plan.sampling, min_tokens=min_tokens)
    trainer.plan = replace(trainer.plan, sampling=sampling)
    if trainer.method.replay is not None:
        remember(trainer)
    return trainer


def remember(trainer: Trainer) -> None:
    """Fill the buffer as a run does in its first epoch, so that replay and anchors are at work from the first turn.

    Where the length is fixed no response ends by itself; they count as ended here.
    """
    selection = Selection(trainer.sources, 0, Quotas(len(trainer.sources.prompts), 0))
    for group in trainer._sample(selection.draw(), selection):
        trainer._reward([group])
        good = [r for r in group.responses if r.reward and r.reward.correct]
        stored = [StoredResponse(token_ids=r.token_ids_T.numpy()) for r in good]
        trainer.sources.buffer.record(
            group.prompt.id,
            num_correct=len(good),
            num_responses=len(group.responses),
            responses=stored,
            step=0,
        )
    trainer.engine.policy.forget_features()


def recipe_of(case: str) -> str:
    return "geo3k-3b" if case.startswith("slice") else "tiny"


def write_for_peer(folder: Path, case: str = "fixed", settings: Sequence[str] = ()) -> Path:
    """The same prompts and images as files: rows of text and image, and where the model is."""
    shape = CASES[case]
    size = [f"data.size={shape.num_prompts}", f"train.prompts_per_step={shape.prompts}"]
    size.append(f"train.minibatch_prompts={shape.prompts}")
    config = apply_settings(recipes.get(recipe_of(case)), [*size, *settings])
    rows = []
    for index, prompt in enumerate(training_prompts(config).by_id.values()):
        path = folder / f"{index}.png"
        prompt.images[0].open().save(path)
        question = prompt.question.replace("<image>", "")
        rows.append({"system": SYSTEM, "user": user_text(question), "image": str(path)})
    work = folder / "work.json"
    work.write_text(json.dumps({"model": resolve_model(config.model.path), "rows": rows}))
    return work


@dataclass(frozen=True)
class _Enlarged:
    """An image at another size."""

    image: Any
    side: int

    def open(self) -> Any:
        return self.image.open().resize((self.side, self.side))


def _enlarged(prompt: Prompt, side: int) -> Prompt:
    return replace(prompt, images=tuple(_Enlarged(image, side) for image in prompt.images))


class _EveryOther:
    """`every_other` in this process: judging is not what is measured here."""

    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[Reward]:
        return [Reward(value, 1.0, "correct" if value else "wrong") for value in every_other(responses)]

    def close(self) -> None:
        pass
