"""Trajectory-level anchors y_exp for the groups a step trains on (Eq. 4, 5, 7).

The candidates of a replayed prompt are fixed before its rollout, and all are scored at the weights of the step's start:
beside the rollout, or after the filter for the groups that it kept. Of the most stable half the one that depends most
on the image becomes the anchor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from pivot.experience import ExperienceBuffer, StoredResponse
from pivot.method import Method, select_anchor
from pivot.models.encoding import EncodedPrompt
from pivot.models.rows import PromptWithResponses
from pivot.training.scoring import Scorer, response_means
from pivot.training.selection import PromptDraw
from pivot.types import Anchor, Prompt, Reward, RolloutGroup


@dataclass
class AnchorScores:
    """What selecting the anchors saw, for the metrics."""

    dependency: float | None = None
    """Mean V over the scored candidates."""
    age: float = 0.0
    """Mean steps since the scores that decided were computed."""


@dataclass(frozen=True)
class ScoredCandidates:
    """The candidates of a prompt with today's H and V, and the log-probs and entropies of their tokens."""

    candidates: tuple[StoredResponse, ...]
    tokens: list[tuple[torch.Tensor, torch.Tensor]]


@dataclass
class AnchorSelector:
    """Chooses and scores the anchor of each group."""

    method: Method
    scorer: Scorer
    buffer: ExperienceBuffer
    experts: Mapping[str, torch.Tensor]
    """Expert demonstrations by prompt id (CalibRL); empty elsewhere."""

    @property
    def _keeps_scores(self) -> bool:
        anchors = self.method.anchors
        return anchors is not None and anchors.anchor_scores == "collected"

    def rate(
        self, visits: Sequence[PromptDraw], encoded: Mapping[str, EncodedPrompt], step: int
    ) -> dict[str, ScoredCandidates]:
        """H and V today of the candidates of replayed prompts, where there is a choice to make.

        With `anchor_scores=collected` only for prompts with a candidate that was never scored: all candidates of a
        prompt are compared under one corrupted image, and what is not known decides nothing.
        """
        if self.method.anchors is None or self.method.has_experts:
            return {}
        chosen = [visit for visit in visits if len(visit.candidates) > 1]
        if self._keeps_scores:
            chosen = [v for v in chosen if any(not c.is_scored for c in v.candidates)]
        return self._score_candidates({v.prompt.id: v.candidates for v in chosen}, encoded, step)

    def fix(
        self,
        groups: Sequence[RolloutGroup],
        visits: Mapping[str, PromptDraw],
        encoded: Mapping[str, EncodedPrompt],
        step: int,
        rated: Mapping[str, ScoredCandidates] | None = None,
    ) -> AnchorScores:
        """Give every group that has one its anchor, with its log-probs at the weights of the step's start.

        `rated` is what `rate` has found already; the rest is rated here.
        """
        scores = AnchorScores()
        if self.method.has_experts:
            chosen = {g.prompt.id: self.experts.get(g.prompt.id) for g in groups}
            for group in groups:
                ids = chosen[group.prompt.id]
                group.anchor = None if ids is None else Anchor(ids)
        else:
            replayed = [g for g in groups if g.replayed and visits[g.prompt.id].candidates]
            found = dict(rated or {})
            found |= self.rate(
                [visits[g.prompt.id] for g in replayed if g.prompt.id not in found], encoded, step
            )
            scores = self._choose(replayed, visits, found, step)
        self._score_missing([g for g in groups if g.anchor is not None], encoded, step)
        return scores

    def collect(
        self, groups: Sequence[RolloutGroup], encode: Callable[[Prompt], EncodedPrompt], step: int
    ) -> None:
        """`collected` scoring: H and V of newly stored responses, at the weights that sampled them.

        `groups` are all that were sampled: what the filter drops may be drawn later.
        """
        if not self._keeps_scores:
            return
        stored = {
            g.prompt.id: self.buffer.candidates(g.prompt.id) for g in groups if g.prompt.id in self.buffer
        }
        found = {name: [c for c in known if not c.is_scored] for name, known in stored.items()}
        unscored = {name: candidates for name, candidates in found.items() if candidates}
        encoded = {g.prompt.id: encode(g.prompt) for g in groups if g.prompt.id in unscored}
        scored = self._score_candidates(unscored, encoded, step)
        for name, found in scored.items():
            self._note(name, found.candidates, step)

    def _choose(
        self,
        groups: Sequence[RolloutGroup],
        visits: Mapping[str, PromptDraw],
        rated: Mapping[str, ScoredCandidates],
        step: int,
    ) -> AnchorScores:
        anchors, scores = self.method.anchors, AnchorScores()
        assert anchors is not None
        known = [rated[g.prompt.id] for g in groups if g.prompt.id in rated]
        scores.dependency = _mean([c.dependency or 0.0 for found in known for c in found.candidates])
        if self._keeps_scores:
            old = [c for g in groups if g.prompt.id not in rated for c in visits[g.prompt.id].candidates]
            scores.age = _mean([step - c.scored_step for c in old]) or 0.0
        for group in groups:
            visit, today = visits[group.prompt.id], rated.get(group.prompt.id)
            candidates = visit.candidates if today is None else today.candidates
            best = _select(candidates, anchors.anchor_keep)
            group.anchor = _as_anchor(candidates[best], visit, step)
            if today is not None:
                group.anchor.logprobs_T, group.anchor.entropy_T = today.tokens[best]
                self._note(group.prompt.id, today.candidates, step)
        return scores

    def _score_candidates(
        self,
        candidates: Mapping[str, Sequence[StoredResponse]],
        encoded: Mapping[str, EncodedPrompt],
        step: int,
    ) -> dict[str, ScoredCandidates]:
        """All candidates of each prompt under both images, one corrupted image a prompt."""
        units = [
            PromptWithResponses(encoded[name], [torch.from_numpy(c.token_ids).long() for c in stored])
            for name, stored in candidates.items()
        ]
        if not units:
            return {}
        found = self.scorer.score(units, step, "both")
        assert found.divergence_BT is not None
        entropy_B = response_means(found.entropy_BT, found.mask_BT).tolist()
        dependency_B = response_means(found.divergence_BT, found.mask_BT).tolist()
        rated, row = {}, 0
        for name, stored in candidates.items():
            today, tokens = [], []
            for candidate in stored:
                today.append(replace(candidate, entropy=entropy_B[row], dependency=dependency_B[row]))
                end = len(candidate)
                tokens.append((found.logprobs_BT[row, :end], found.entropy_BT[row, :end]))
                row += 1
            rated[name] = ScoredCandidates(tuple(today), tokens)
        return rated

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
        units = [PromptWithResponses(encoded[name], [anchor.token_ids_T]) for name, anchor in anchors]
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
    assert all(c.is_scored for c in candidates), "an unscored candidate cannot be compared"
    entropy = torch.tensor([c.entropy for c in candidates])
    dependency = torch.tensor([c.dependency for c in candidates])
    return int(select_anchor(entropy, dependency, keep=keep))


def _as_anchor(chosen: StoredResponse, visit: PromptDraw, step: int) -> Anchor:
    draw = visit.draw
    assert draw is not None
    return Anchor(
        token_ids_T=torch.from_numpy(chosen.token_ids).long(),
        recorded_logprobs_T=None if chosen.logprobs is None else torch.from_numpy(chosen.logprobs),
        reward=_recorded_reward(chosen),
        entropy=chosen.entropy,
        dependency=chosen.dependency,
        probability=draw.probability,
        age=step - chosen.step,
        times_drawn=draw.times_drawn,
    )


def _recorded_reward(chosen: StoredResponse) -> Reward | None:
    if chosen.accuracy is None or chosen.format is None:
        return None
    return Reward(chosen.accuracy, chosen.format, "correct")


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
