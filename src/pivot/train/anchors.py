"""Trajectory-level anchors y_exp for the groups a step trains on (Eq. 4, 5, 7).

The candidates of a replayed prompt were fixed before its rollout; they are scored here, at the same weights, for the
groups that the filter kept. Of the most stable half the one that depends most on the image becomes the anchor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from pivot.experience import ExperienceBuffer, StoredResponse
from pivot.method import Method, select_anchor
from pivot.policy.encoding import EncodedPrompt
from pivot.policy.rows import Unit
from pivot.train.scoring import Scorer, response_means
from pivot.train.selection import Visit
from pivot.types import Anchor, RolloutGroup


@dataclass
class AnchorScores:
    """What selecting the anchors saw, for the metrics."""

    dependency: float | None = None
    """Mean V over the scored candidates."""
    age: float = 0.0
    """Mean steps since the scores that decided were computed."""


@dataclass
class AnchorSelector:
    """Chooses and scores the anchor of each group."""

    method: Method
    scorer: Scorer
    buffer: ExperienceBuffer
    experts: Mapping[str, torch.Tensor]
    """Expert demonstrations by prompt id (CalibRL); empty elsewhere."""

    def fix(
        self,
        groups: Sequence[RolloutGroup],
        visits: Mapping[str, Visit],
        encoded: Mapping[str, EncodedPrompt],
        step: int,
    ) -> AnchorScores:
        """Give every group that has one its anchor, with its log-probs at the weights of the step's start."""
        scores = AnchorScores()
        if self.method.anchor_source == "expert":
            chosen = {g.prompt.id: self.experts.get(g.prompt.id) for g in groups}
            for group in groups:
                ids = chosen[group.prompt.id]
                group.anchor = None if ids is None else Anchor(ids)
        else:
            replayed = [g for g in groups if g.replayed and visits[g.prompt.id].candidates]
            scores = self._choose(replayed, visits, encoded, step)
        self._score_missing([g for g in groups if g.anchor is not None], encoded, step)
        return scores

    def collect(
        self, groups: Sequence[RolloutGroup], encoded: Mapping[str, EncodedPrompt], step: int
    ) -> None:
        """`collected` scoring: H and V of newly stored responses, at the weights that sampled them."""
        if self.method.anchor_scores != "collected" or not self.method.needs_anchors:
            return
        stored = {
            g.prompt.id: self.buffer.candidates(g.prompt.id) for g in groups if g.prompt.id in self.buffer
        }
        unscored = {name: tuple(c for c in found if c.dependency is None) for name, found in stored.items()}
        self._score_candidates([g for g in groups if unscored.get(g.prompt.id)], unscored, encoded, step)

    def _choose(
        self,
        groups: Sequence[RolloutGroup],
        visits: Mapping[str, Visit],
        encoded: Mapping[str, EncodedPrompt],
        step: int,
    ) -> AnchorScores:
        candidates = {g.prompt.id: visits[g.prompt.id].candidates for g in groups}
        scores = AnchorScores()
        if self.method.anchor_scores == "current":
            many = [g for g in groups if len(candidates[g.prompt.id]) > 1]
            scored = self._score_candidates(many, candidates, encoded, step)
            candidates |= {name: found for name, (found, _) in scored.items()}
            scores.dependency = _mean([c.dependency or 0.0 for found, _ in scored.values() for c in found])
        else:
            scored = {}
            scores.age = _mean([step - c.scored_step for cs in candidates.values() for c in cs]) or 0.0
        for group in groups:
            name = group.prompt.id
            best = _select(candidates[name], self.method.anchor_keep)
            group.anchor = _as_anchor(candidates[name][best], visits[name], step)
            if name in scored:
                group.anchor.logprobs_T, group.anchor.entropy_T = scored[name][1][best]
        return scores

    def _score_candidates(
        self,
        groups: Sequence[RolloutGroup],
        candidates: Mapping[str, tuple[StoredResponse, ...]],
        encoded: Mapping[str, EncodedPrompt],
        step: int,
    ) -> dict[str, tuple[tuple[StoredResponse, ...], list[tuple[torch.Tensor, torch.Tensor]]]]:
        """H and V of all candidates of these prompts today, under one corrupted image a prompt (items 17, 18).

        With them the log-probs and entropies of their tokens.
        """
        units = [
            Unit(
                encoded[g.prompt.id],
                [torch.from_numpy(c.token_ids).long() for c in candidates[g.prompt.id]],
            )
            for g in groups
        ]
        found = self.scorer.score(units, step, "both")
        assert found.divergence_BT is not None
        entropy_B = response_means(found.entropy_BT, found.mask_BT).tolist()
        dependency_B = response_means(found.divergence_BT, found.mask_BT).tolist()
        scored, row = {}, 0
        for group in groups:
            name, today, tokens = group.prompt.id, [], []
            for candidate in candidates[name]:
                today.append(replace(candidate, entropy=entropy_B[row], dependency=dependency_B[row]))
                end = len(candidate)
                tokens.append((found.logprobs_BT[row, :end], found.entropy_BT[row, :end]))
                row += 1
            self._note(name, today, step)
            scored[name] = (tuple(today), tokens)
        return scored

    def _note(self, prompt_id: str, scored: Sequence[StoredResponse], step: int) -> None:
        """Keep today's scores with the responses that are still stored."""
        held = {c.serial for c in self.buffer.candidates(prompt_id)} if prompt_id in self.buffer else set()
        scores = {c.serial: (c.entropy or 0.0, c.dependency or 0.0) for c in scored if c.serial in held}
        if scores:
            self.buffer.update_scores(prompt_id, scores, step=step)

    def _score_missing(
        self, groups: Sequence[RolloutGroup], encoded: Mapping[str, EncodedPrompt], step: int
    ) -> None:
        """Log-probs of anchors that needed no choosing: a single candidate, kept scores, or an expert's."""
        anchors = [(g.prompt.id, g.anchor) for g in groups if g.anchor and g.anchor.logprobs_T is None]
        units = [Unit(encoded[name], [anchor.token_ids_T]) for name, anchor in anchors]
        if not units:
            return
        found = self.scorer.score(units, step, "clean")
        for row, (_, anchor) in enumerate(anchors):
            end = len(anchor.token_ids_T)
            anchor.logprobs_T, anchor.entropy_T = found.logprobs_BT[row, :end], found.entropy_BT[row, :end]
            anchor.entropy = float(anchor.entropy_T.mean())


def _select(candidates: Sequence[StoredResponse], keep: float) -> int:
    """Eq. 7; candidates come oldest first, and a tie goes to the newer one."""
    if len(candidates) == 1:
        return 0
    entropy = torch.tensor([c.entropy or 0.0 for c in candidates])
    dependency = torch.tensor([c.dependency or 0.0 for c in candidates])
    return int(select_anchor(entropy, dependency, keep=keep))


def _as_anchor(chosen: StoredResponse, visit: Visit, step: int) -> Anchor:
    draw = visit.draw
    assert draw is not None
    return Anchor(
        token_ids_T=torch.from_numpy(chosen.token_ids).long(),
        recorded_logprobs_T=None if chosen.logprobs is None else torch.from_numpy(chosen.logprobs),
        entropy=chosen.entropy,
        dependency=chosen.dependency,
        probability=draw.probability,
        age=step - chosen.step,
        times_drawn=draw.times_drawn,
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
