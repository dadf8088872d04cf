"""Lines of rollouts.jsonl: a few groups of a step with the scores of every token, and their images."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image
from torch import Tensor

from pivot.data.images import open_rgb
from pivot.engines.base import Engine
from pivot.method import Batch, Diagnostics, k3_divergence
from pivot.training.step import StepOutcome
from pivot.types import Prompt, RolloutGroup

WIDEST = 448


def rollout_records(outcome: StepOutcome, engine: Engine, num_groups: int) -> list[dict[str, Any]]:
    """The groups of a step whose advantages vary most over tokens, as docs/run_folder.md describes them."""
    batch, diagnostics = outcome.batch, outcome.diagnostics
    if batch is None or diagnostics is None:
        return []
    writer = _Writer(outcome.step, outcome.groups, batch, diagnostics, engine)
    return [writer.group(g) for g in _most_varied(outcome.groups, batch)[:num_groups]]


def _most_varied(groups: Sequence[RolloutGroup], batch: Batch) -> list[int]:
    """Groups with both right and wrong responses, the widest spread of advantages first."""
    spread_BT = (batch.given("advantage_BT") - batch.given("group_advantage_B")[:, None]).abs()
    spread_P = batch.by_prompt(spread_BT.mul(batch.mask_BT).amax(1)).amax(1).tolist()
    mixed = [g for g, group in enumerate(groups) if group.is_informative]
    return sorted(mixed, key=lambda g: (-spread_P[g], g))


@dataclass(frozen=True)
class _Writer:
    step: int
    groups: Sequence[RolloutGroup]
    rows: Batch
    diagnostics: Diagnostics
    engine: Engine

    def group(self, g: int) -> dict[str, Any]:
        group = self.groups[g]
        with_corrupted = self.rows.corrupted_logprobs_BT is not None
        return {
            "step": self.step,
            "prompt_id": group.prompt.id,
            "task": group.prompt.task,
            "question": group.prompt.question,
            "answer": group.prompt.answer,
            "images": [data_uri(open_rgb(source)) for source in group.prompt.images],
            "corrupted_images": self._corrupted(group.prompt) if with_corrupted else [],
            "replayed": group.replayed,
            "anchor": self._anchor(g),
            "responses": [self._response(g, i) for i in range(len(group.responses))],
        }

    def _response(self, g: int, i: int) -> dict[str, Any]:
        response = self.groups[g].responses[i]
        row = g * self.rows.group_size + i
        length, reward = len(response), response.reward
        assert reward is not None
        rows, diagnostics = self.rows, self.diagnostics
        columns = {
            "logprobs": rows.clean_logprobs_BT,
            "entropy": rows.entropy_BT,
            "support": diagnostics.support_BT,
            "future": diagnostics.future_BT,
            "gate": diagnostics.gate_BT,
            "utility": diagnostics.utility_BT,
            "advantage_final": rows.advantage_BT,
        }
        return {
            "text": response.text or self._text(response.token_ids_T),
            "tokens": self._tokens(response.token_ids_T),
            "correct": reward.correct,
            "format": reward.format > 0.5,
            "reason": reward.reason,
            **({"rewards": dict(reward.parts)} if reward.parts else {}),
            "extracted": reward.extracted,
            "truncated": response.truncated,
            "experience": bool(rows.given("off_policy_B")[row]),
            "advantage": round(float(rows.given("group_advantage_B")[row]), 5),
            "dependency": self._dependency(row, length),
            **{name: _numbers(v[row, :length]) for name, v in columns.items() if v is not None},
        }

    def _dependency(self, row: int, length: int) -> float | None:
        """V(y) estimated from the sampled tokens: the mean k3, whose expectation is the divergence of Eq. 4."""
        corrupted_BT = self.rows.corrupted_logprobs_BT
        if corrupted_BT is None:
            return None
        clean_BT = self.rows.clean_logprobs_BT
        k3_BT = k3_divergence(
            clean_BT[row : row + 1], corrupted_BT[row : row + 1], self.rows.mask_BT[row : row + 1]
        )
        return round(float(k3_BT.sum()) / max(1, length), 5)

    def _anchor(self, g: int) -> dict[str, Any] | None:
        anchor = self.groups[g].anchor
        if anchor is None or anchor.logprobs_T is None:
            return None
        return {
            "text": self._text(anchor.token_ids_T),
            "tokens": self._tokens(anchor.token_ids_T),
            "mean_logprob": float(anchor.logprobs_T.mean()),
            "entropy": anchor.entropy,
            "dependency": anchor.dependency,
            "probability": anchor.probability,
            "age": anchor.age,
            "times_drawn": anchor.times_drawn,
        }

    def _text(self, ids: Tensor) -> str:
        return self.engine.encoder.tokenizer.decode(ids, skip_special_tokens=True)

    def _tokens(self, ids: Tensor) -> list[str]:
        known = {i: str(self.engine.encoder.tokenizer.decode([i])) for i in set(ids.tolist())}
        return [known[i] for i in ids.tolist()]

    def _corrupted(self, prompt: Prompt) -> list[str]:
        corruptor = self.engine.corruptor
        corrupted = corruptor.corrupt(self.engine.encoder.encode(prompt), self.step)
        return [data_uri(self.engine.encoder.family.picture(image)) for image in corrupted.images]


def _numbers(values: Tensor) -> Sequence[float]:
    return [round(v, 5) for v in values.tolist()]


def data_uri(image: Image.Image) -> str:
    """The image for a page, at most WIDEST pixels wide."""
    if image.width > WIDEST:
        image = image.resize((WIDEST, max(1, round(image.height * WIDEST / image.width))))
    buffer = io.BytesIO()
    # Photographs are far smaller as JPEG, drawings as PNG.
    drawn = image.getcolors(511) is not None
    image.save(buffer, "PNG" if drawn else "JPEG", **({"optimize": True} if drawn else {"quality": 80}))
    kind = "png" if drawn else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
