"""Lines of rollouts.jsonl: a few groups of a step with the scores of every token, and their images."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from pivot.data.images import open_rgb
from pivot.method import Diagnostics, k3_divergence
from pivot.models.corruption import Corruptor
from pivot.models.encoding import EncodedPrompt
from pivot.models.policy import Policy
from pivot.training.batch import StepBatch
from pivot.training.trainer import StepOutcome

WIDEST = 448


def rollout_records(
    outcome: StepOutcome, policy: Policy, corruptor: Corruptor, num_groups: int
) -> list[dict[str, Any]]:
    """The most telling groups of a step, as docs/run_folder.md describes them."""
    batch, diagnostics = outcome.batch, outcome.diagnostics
    if batch is None or diagnostics is None:
        return []
    writer = _Writer(outcome.step, batch, diagnostics, policy, corruptor)
    return [writer.group(g) for g in _most_telling(batch)[:num_groups]]


def _most_telling(batch: StepBatch) -> list[int]:
    """Groups with both right and wrong responses, those whose advantages spread most over tokens first."""
    rows = batch.tensors
    spread_BT = (rows.given("advantage_BT") - rows.given("group_advantage_B")[:, None]).abs()
    spread_P = rows.by_prompt(spread_BT.mul(rows.mask_BT).amax(1)).amax(1).tolist()
    mixed = [g for g, group in enumerate(batch.groups) if group.is_informative]
    return sorted(mixed, key=lambda g: (-spread_P[g], g))


class _Writer:
    def __init__(
        self, step: int, batch: StepBatch, diagnostics: Diagnostics, policy: Policy, corruptor: Corruptor
    ) -> None:
        self.step, self.groups, self.rows = step, batch.groups, batch.tensors
        self.diagnostics = diagnostics
        self.policy, self.corruptor = policy, corruptor

    def group(self, g: int) -> dict[str, Any]:
        group = self.groups[g]
        encoded = self.policy.encoder.encode(group.prompt)
        return {
            "step": self.step,
            "prompt_id": group.prompt.id,
            "task": group.prompt.task,
            "question": group.prompt.question,
            "answer": group.prompt.answer,
            "images": [_data_uri(open_rgb(source)) for source in group.prompt.images],
            "corrupted_images": self._corrupted(encoded)
            if self.rows.corrupted_logprobs_BT is not None
            else [],
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
            "text": response.text
            or self.policy.tokenizer.decode(response.token_ids_T, skip_special_tokens=True),
            "tokens": self._tokens(response.token_ids_T),
            "correct": reward.correct,
            "format": reward.format > 0.5,
            "reason": reward.reason,
            "extracted": reward.extracted,
            "truncated": response.truncated,
            "experience": bool(rows.given("off_policy_B")[row]),
            "advantage": round(float(rows.given("group_advantage_B")[row]), 5),
            "dependency": self._dependency(row, length),
            **{name: _numbers(v[row, :length]) for name, v in columns.items() if v is not None},
        }

    def _dependency(self, row: int, length: int) -> float | None:
        """V(y) as its sampled tokens estimate it: the mean k3, whose expectation is the divergence of Eq. 4."""
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
            "text": self.policy.tokenizer.decode(anchor.token_ids_T, skip_special_tokens=True),
            "tokens": self._tokens(anchor.token_ids_T),
            "mean_logprob": float(anchor.logprobs_T.mean()),
            "entropy": anchor.entropy,
            "dependency": anchor.dependency,
            "probability": anchor.probability,
            "age": anchor.age,
            "times_drawn": anchor.times_drawn,
        }

    def _tokens(self, ids: Tensor) -> list[str]:
        return [str(self.policy.tokenizer.decode([i])) for i in ids.tolist()]

    def _corrupted(self, encoded: EncodedPrompt) -> list[str]:
        damaged = self.corruptor.corrupt(encoded, self.step)
        return [_data_uri(self.corruptor.picture(image)) for image in damaged.images]


def _numbers(values: Tensor) -> Sequence[float]:
    return [round(v, 5) for v in values.tolist()]


def _data_uri(image: Image.Image) -> str:
    if image.width > WIDEST:
        image = image.resize((WIDEST, max(1, round(image.height * WIDEST / image.width))))
    buffer = io.BytesIO()
    # Photographs are far smaller as JPEG, drawings as PNG.
    drawn = len(np.unique(np.asarray(image).reshape(-1, 3), axis=0)) < 512
    image.save(buffer, "PNG" if drawn else "JPEG", **({"optimize": True} if drawn else {"quality": 80}))
    kind = "png" if drawn else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
