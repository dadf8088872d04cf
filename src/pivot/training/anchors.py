"""Trajectory-level anchors y_exp for the groups a step trains on (Eq. 4, 5, 7).

The candidates of a replayed prompt are captured when it is drawn, and scored at the weights of the step's start. Of the
most stable half of them, the one that depends most on the image becomes the anchor. Where that half is one candidate,
as of two or three, entropy alone decides and no corrupted image is needed; ExGRPO always decides so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from pivot.engines.base import Engine, ScoreRequest, View
from pivot.engines.scoring import response_means
from pivot.experience import Draw, ExperienceBuffer, StoredResponse
from pivot.method import Method, num_stable, select_anchor
from pivot.training.batch import unit_of
from pivot.types import Anchor, Reward, RolloutGroup

UNKNOWN = float("nan")
"""V as the buffer stores it where it was not computed."""


@dataclass
class AnchorScores:
    """What selecting the anchors saw, for the metrics."""

    dependency: float | None = None
    """Mean V over the candidates for which it was computed."""
    age: float = 0.0
    """Mean steps since the scores that decided were computed."""


@dataclass
class AnchorSelector:
    """Chooses and scores the anchor of each group."""

    method: Method
    engine: Engine
    buffer: ExperienceBuffer
    experts: Mapping[str, torch.Tensor]
    """Expert demonstrations by prompt id (CalibRL); empty for other methods."""

    @property
    def _by_entropy(self) -> bool:
        """Whether H alone decides (ExGRPO)."""
        return self.method.anchors is not None and self.method.anchors.anchor_choice == "entropy"

    @property
    def _keeps_scores(self) -> bool:
        """Whether scores are those of the step that stored a response (`anchor_scores=collected`)."""
        anchors = self.method.anchors
        return anchors is not None and anchors.anchor_scores == "collected"

    def scoring(self, groups: Sequence[RolloutGroup], step: int) -> list[ScoreRequest]:
        """What has to be scored before the anchors of these groups are chosen, and anchors without a choice."""
        parts = self._by_view([g for g in groups if self._needs_scores(g)])
        requests = [_request(part, view, step) for view, part in parts]
        fixed = [(group, ids) for group in groups if (ids := self._fixed(group)) is not None]
        if fixed:
            units = [unit_of(group, [ids]) for group, ids in fixed]
            requests.append(ScoreRequest(units, step, "clean"))
        return requests

    def _fixed(self, group: RolloutGroup) -> torch.Tensor | None:
        """The anchor where there is one to choose from: an expert's demonstration, or the only candidate."""
        if self.method.has_experts:
            return self.experts.get(group.prompt.id)
        return group.candidates[0].token_ids_T if len(group.candidates) == 1 else None

    def fix(self, groups: Sequence[RolloutGroup], step: int) -> AnchorScores:
        """Give each group that has candidates its anchor, with log-probs at the weights of the step's start."""
        if self.method.has_experts:
            for group in groups:
                ids = self._fixed(group)
                group.anchor = None if ids is None else Anchor(ids)
            scores = AnchorScores()
        else:
            scores = self._choose([g for g in groups if g.candidates], step)
        self._score_missing([g for g in groups if g.anchor is not None], step)
        return scores

    def collect(self, groups: Sequence[RolloutGroup], step: int) -> None:
        """`anchor_scores=collected`: H and V of newly stored responses, at the weights that sampled them.

        `groups` are all that were sampled: a prompt that the filter drops may be drawn later.
        """
        if not self._keeps_scores:
            return
        found: list[RolloutGroup] = []
        for group in groups:
            stored = self.buffer.candidates(group.prompt.id) if group.prompt.id in self.buffer else []
            unscored = tuple(_candidate(response) for response in stored if not self._is_scored(response))
            if unscored:
                prepared = self.engine.prepare(group.prompt)  # dropped groups have released theirs
                found.append(RolloutGroup(group.prompt, candidates=unscored, prepared=prepared))
        self._score_candidates(found, step)
        for group in found:
            self._keep_scores(group, step)

    def _needs_scores(self, group: RolloutGroup) -> bool:
        """Whether there is a choice to make that needs today's H and V.

        With `collected` that is so only if a candidate was never scored: all candidates of a prompt are then compared
        under one corrupted image.
        """
        if self.method.has_experts or len(group.candidates) < 2:
            return False
        return not self._keeps_scores or not all(map(self._is_scored, group.candidates))

    def _is_scored(self, candidate: Anchor | StoredResponse) -> bool:
        return candidate.is_scored or (self._by_entropy and candidate.entropy is not None)

    def _by_view(self, groups: Sequence[RolloutGroup]) -> list[tuple[View, list[RolloutGroup]]]:
        """The groups whose candidates are compared by V, and those where entropy alone decides."""
        compared = [g for g in groups if self._compares(len(g.candidates))]
        others = [g for g in groups if not self._compares(len(g.candidates))]
        parts: tuple[tuple[View, list[RolloutGroup]], ...] = (("both", compared), ("clean", others))
        return [(view, part) for view, part in parts if part]

    def _compares(self, num_candidates: int) -> bool:
        """Whether V decides between so many candidates; collected scores may be compared with later ones."""
        anchors = self.method.anchors
        if anchors is None or self._by_entropy:
            return False
        return self._keeps_scores or num_stable(num_candidates, anchors.anchor_keep) > 1

    def _choose(self, groups: Sequence[RolloutGroup], step: int) -> AnchorScores:
        scored = [g for g in groups if self._needs_scores(g)]
        known = [g for g in groups if not self._needs_scores(g)]
        self._score_candidates(scored, step)
        dependencies = [c.dependency for g in scored for c in g.candidates if c.dependency is not None]
        scores = AnchorScores(_mean(dependencies))
        if self._keeps_scores:
            scores.age = _mean([c.score_age for g in known for c in g.candidates]) or 0.0
        anchors = self.method.anchors
        assert anchors is not None
        for group in groups:
            # One candidate is left to choose from: that of lowest entropy, the newer of equal ones.
            keep = 1e-9 if self._by_entropy else anchors.anchor_keep
            group.anchor = group.candidates[_select(group.candidates, keep)]
        for group in scored:
            self._keep_scores(group, step)
        return scores

    def _score_candidates(self, groups: Sequence[RolloutGroup], step: int) -> None:
        """H of all candidates of each group and V where it decides, with one corrupted image per prompt."""
        for view, part in self._by_view(groups):
            found = self.engine.score(_request(part, view, step))
            entropy_B = response_means(found.entropy_BT, found.mask_BT).tolist()
            dependency_B: list[float | None] = [None] * len(entropy_B)
            if view == "both":
                assert found.divergence_BT is not None
                dependency_B = response_means(found.divergence_BT, found.mask_BT).tolist()
            pairs = [(group.prompt, candidate) for group in part for candidate in group.candidates]
            for row, (prompt, candidate) in enumerate(pairs):
                candidate.entropy = entropy_B[row]
                # Without an image there is nothing to corrupt: V = 0 exactly.
                candidate.dependency = dependency_B[row] if prompt.images or self._by_entropy else 0.0
                candidate.logprobs_T = found.logprobs_BT[row, : len(candidate)]
                candidate.entropy_T = found.entropy_BT[row, : len(candidate)]

    def _keep_scores(self, group: RolloutGroup, step: int) -> None:
        """Record today's scores with the responses that are still in the buffer."""
        name = group.prompt.id
        held = {c.serial for c in self.buffer.candidates(name)} if name in self.buffer else set()
        scores = {
            c.serial: (c.entropy or 0.0, UNKNOWN if c.dependency is None else c.dependency)
            for c in group.candidates
            if c.serial in held
        }
        if scores:
            self.buffer.update_scores(name, scores, step=step)

    def _score_missing(self, groups: Sequence[RolloutGroup], step: int) -> None:
        """Log-probs of anchors that needed no choice: single candidates, collected scores, experts."""
        missing = [(g, g.anchor) for g in groups if g.anchor is not None and g.anchor.logprobs_T is None]
        if not missing:
            return
        units = [unit_of(g, [anchor.token_ids_T]) for g, anchor in missing]
        found = self.engine.score(ScoreRequest(units, step, "clean"))
        for row, (_, anchor) in enumerate(missing):
            anchor.logprobs_T = found.logprobs_BT[row, : len(anchor)]
            anchor.entropy_T = found.entropy_BT[row, : len(anchor)]
            anchor.entropy = float(anchor.entropy_T.mean())


def _request(groups: Sequence[RolloutGroup], view: View, step: int) -> ScoreRequest:
    return ScoreRequest([unit_of(g, [c.token_ids_T for c in g.candidates]) for g in groups], step, view)


def candidates_of(buffer: ExperienceBuffer, draw: Draw, step: int) -> tuple[Anchor, ...]:
    """The stored responses of a drawn prompt, oldest first, as they are now."""
    return tuple(_candidate(stored, draw, step) for stored in buffer.candidates(draw.prompt_id))


def _candidate(stored: StoredResponse, draw: Draw | None = None, step: int = 0) -> Anchor:
    known = stored.accuracy is not None and stored.format is not None
    return Anchor(
        token_ids_T=torch.from_numpy(stored.token_ids).long(),
        recorded_logprobs_T=None if stored.logprobs is None else torch.from_numpy(stored.logprobs),
        reward=Reward(stored.accuracy or 0.0, stored.format or 0.0, "correct", success=True)
        if known
        else None,
        entropy=stored.entropy,
        dependency=stored.dependency,
        probability=draw.probability if draw else 0.0,
        age=step - stored.step,
        score_age=step - stored.scored_step,
        times_drawn=draw.times_drawn if draw else 0,
        serial=stored.serial,
    )


def _select(candidates: Sequence[Anchor], keep: float) -> int:
    """Eq. 7; candidates come oldest first, and a tie goes to the newer one."""
    if len(candidates) == 1:
        return 0
    assert all(c.entropy is not None for c in candidates), "an unscored candidate cannot be compared"
    entropy = torch.tensor([c.entropy for c in candidates])
    dependency = torch.tensor([c.dependency or 0.0 for c in candidates])
    return int(select_anchor(entropy, dependency, keep=keep))


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
