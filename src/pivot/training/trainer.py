"""One training step, as in the paper's Figure 1."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from pivot.data.noise import noisy_prompt
from pivot.engines.base import Engine, ScoreRequest, Skipped
from pivot.experience import GroupStore, ReplayGate, StoredResponse
from pivot.method import Batch, Method, allocate_advantage, truncated_importance
from pivot.models.encoding import UnreadablePrompt
from pivot.models.rows import PromptWithResponses
from pivot.rewards.judge import Judge, overlong_penalty
from pivot.sampling import SampleRequest
from pivot.training.anchors import AnchorScores, AnchorSelector
from pivot.training.batch import build_batch, minibatches, shuffled, units_of, with_experience
from pivot.training.clock import PhaseClock
from pivot.training.selection import Quotas, Selection, Sources
from pivot.training.step import Sampled, StepOutcome, StepPlan, UpdateSummary
from pivot.training.stored import as_group, is_varied, store_groups
from pivot.types import PreparedPrompt, Response, Reward, RolloutGroup


@dataclass
class Trainer:
    """Takes the steps of a run, with any engine."""

    method: Method
    plan: StepPlan
    engine: Engine
    sources: Sources
    gate: ReplayGate
    judge: Judge
    anchor_selector: AnchorSelector
    clock: PhaseClock
    store: GroupStore | None = None
    """Groups of earlier steps, for methods that replay them."""
    finished_steps: int = 0
    updating_step: int = 0
    """The latest step whose update has begun: from then on the weights are no longer those of the step before."""
    sampled: Sampled = field(default_factory=Sampled)

    @property
    def groups_left(self) -> int | None:
        """How many groups the budget still allows; None without a budget."""
        budget = self.plan.max_responses
        return None if budget is None else max(0, budget - self.sampled.responses) // self.plan.responses

    def step(self) -> StepOutcome:
        """Sample until the step is full, then record, anchor, score, allocate and update."""
        step = self.finished_steps + 1
        selection = self._open(step)
        while drawn := selection.draw():  # Eq. 6: replayed prompts at the frontier, and fresh ones
            groups = self._sample(drawn, selection)  # Eq. 1: G responses per prompt
            self._reward(groups)  # R_i
            selection.filter(groups)  # DAPO: 0 < k < G
        selection.close()
        self._record(selection.sampled, step)  # x -> {p-hat, Y+}, dropped groups included
        outcome = StepOutcome(step, self.plan.learning_rate(step), selection, self.gate.is_open)
        outcome.total = self.sampled
        self.gate.observe(_solved_ratio(selection.sampled), step)
        outcome.noise_level = self._noise_level(step)
        kept = self._refilled(selection, outcome)  # SSR: stored groups for those of equal rewards
        if selection.nonfinite:
            outcome.update = UpdateSummary(skipped=[Skipped("reward", selection.nonfinite)])
        elif kept:
            outcome.anchors = self._anchor(kept, selection, step)  # Eq. 4, 5, 7: y_exp
            outcome.groups, batch = self._batch(kept, step)
            batch = self._score(outcome.groups, batch, step)  # log p, log q, H
            batch, outcome.diagnostics = allocate_advantage(self.method, batch)  # Eq. 2, 10-15: A_final
            if self.store is not None:
                store_groups(self.store, self.method, outcome.groups, batch, step)
            self.updating_step = step
            outcome.update = self._update(outcome.groups, batch, outcome.lr)  # Eq. 3, 8, 9, 16
            outcome.batch = batch
        self.finished_steps = step
        return outcome

    def _open(self, step: int) -> Selection:
        replay = self.method.replay if self.gate.is_open else None
        replayed = 0 if replay is None else round(self.plan.prompts * replay.replay_share)
        left = self.groups_left
        quotas = Quotas(
            num_fresh=self.plan.prompts - replayed,
            num_replayed=replayed,
            max_tries=self.plan.max_tries if self.method.dynamic_sampling else 1,
            filter_groups=self.method.dynamic_sampling,
            oversample=self.plan.oversample,
            with_experience=self.method.trains_on_experience,
            max_groups=sys.maxsize if left is None else left,
        )
        return Selection(self.sources, step, quotas)

    # Sampling ----------------------------------------------------------------------------------------------

    def _sample(self, drawn: Sequence[RolloutGroup], selection: Selection) -> list[RolloutGroup]:
        """The groups with their responses; a prompt whose image cannot be decoded is dropped."""
        with self.clock.phase("rollout"):
            self.engine.read_images([group.prompt for group in drawn])
            groups = [group for group in drawn if self._prepare(group, selection)]
            plan, step = self.plan, selection.step
            refill = partial(self._refill, groups, selection)
            request = SampleRequest(plan.responses, plan.sampling, (plan.seed, step), refill=refill)
            prompts = [group.prepared for group in groups if group.prepared is not None]
            sampled = self._draw(prompts, request, self._scored_later(groups, selection), step)
            for group, responses in zip(groups, sampled, strict=True):
                group.responses = responses
            self.sampled = self.sampled.after(groups)
            return groups

    def _draw(
        self,
        prompts: Sequence[PreparedPrompt],
        request: SampleRequest,
        later: Sequence[ScoreRequest],
        step: int,
    ) -> list[list[Response]]:
        """All responses under the clean image, or the last ones of each group under a noisy one (NoisyRollout)."""
        level, noise = self._noise_level(step), self.method.noise
        num_noisy = 0 if noise is None or not level else noise.num_noisy(request.num_samples)
        num_clean = request.num_samples - num_noisy
        if not num_noisy or level is None:
            return self.engine.sample(prompts, request, later)
        seen = [self.engine.prepare(noisy_prompt(p.prompt, level, (self.plan.seed, step))) for p in prompts]
        request = replace(request, refill=None)  # both halves of a round have the same prompts
        clean: list[list[Response]] = [[] for _ in prompts]
        if num_clean:
            clean = self.engine.sample(prompts, replace(request, num_samples=num_clean), later)
        noisy = self.engine.sample(seen, replace(request, num_samples=num_noisy))
        return [[*some, *map(_unscored, others)] for some, others in zip(clean, noisy, strict=True)]

    def _noise_level(self, step: int) -> int | None:
        noise = self.method.noise
        return None if noise is None else int(noise.level(step, self.plan.steps))

    def _refill(
        self, groups: list[RolloutGroup], selection: Selection, finished: Mapping[int, list[Response]]
    ) -> list[PreparedPrompt]:
        """Reward groups while others are still being sampled, and add prompts to the round (`groups`) if need be."""
        for index, responses in finished.items():
            groups[index].responses = responses
        self._judge([groups[index] for index in finished])
        drawn = selection.refill(
            [group for group in groups if group.responses], [group for group in groups if not group.responses]
        )
        if drawn:
            self.engine.read_images([group.prompt for group in drawn])
        new = [group for group in drawn if self._prepare(group, selection)]
        groups += new
        return [group.prepared for group in new if group.prepared is not None]

    def _prepare(self, group: RolloutGroup, selection: Selection) -> bool:
        try:
            group.prepared = self.engine.prepare(group.prompt)
        except UnreadablePrompt as unreadable:
            selection.unreadable.append(str(unreadable))
            return False
        return True

    def _scored_later(self, groups: Sequence[RolloutGroup], selection: Selection) -> list[ScoreRequest]:
        """What the step will ask for that does not depend on the responses being sampled."""
        requests: list[ScoreRequest] = []
        if self.method.needs_anchors:
            requests += self.anchor_selector.scoring(groups, selection.step)
        if self.method.needs_corrupted and not self.method.trains_on_experience:
            requests.append(ScoreRequest(units_of(selection.kept), selection.step, "corrupted"))
        return requests

    def _reward(self, groups: Sequence[RolloutGroup]) -> None:
        with self.clock.phase("verify"):
            self._judge(groups)

    def _judge(self, groups: Sequence[RolloutGroup]) -> None:
        rows = [(g.prompt, response) for g in groups for response in g.responses if response.reward is None]
        if not rows:
            return
        rewards = self.judge.judge([prompt for prompt, _ in rows], [response.text for _, response in rows])
        for (_, response), reward in zip(rows, rewards, strict=True):
            response.reward = self._with_penalty(reward, response)

    def _with_penalty(self, reward: Reward, response: Response) -> Reward:
        """Right and wrong stay what they are."""
        if not self.plan.overlong_cache:
            return reward
        penalty = overlong_penalty(len(response), self.plan.sampling.max_tokens, self.plan.overlong_cache)
        parts = {**reward.parts, "overlong": penalty}
        return replace(reward, accuracy=reward.accuracy + penalty, success=reward.correct, parts=parts)

    # Experience --------------------------------------------------------------------------------------------

    def _record(self, groups: Sequence[RolloutGroup], step: int) -> None:
        """p-hat of every sampled prompt, and its correct responses that were not cut off."""
        if self.method.replay is None:
            return
        if self.plan.store_logprobs:
            self._fill_in_logprobs(groups, step)
        for group in groups:
            self.sources.buffer.record(
                group.prompt.id,
                num_correct=sum(r.correct for r in group.responses),
                num_responses=len(group.responses),
                responses=[stored_response(r, self.plan.store_logprobs) for r in _replayable(group)],
                step=step,
            )

    def _fill_in_logprobs(self, groups: Sequence[RolloutGroup], step: int) -> None:
        """Log-probs of the responses to be stored, where sampling did not return them."""
        unknown = [(g, [r for r in _replayable(g) if r.logprobs_T is None]) for g in groups]
        missing = [(group, responses) for group, responses in unknown if responses]
        if not missing:
            return
        with self.clock.phase("score"):
            # Groups that are not kept have released their prepared prompts.
            units = [
                PromptWithResponses(self.engine.prepare(group.prompt), [r.token_ids_T for r in responses])
                for group, responses in missing
            ]
            found = self.engine.score(ScoreRequest(units, step, "clean"))
            for row, response in enumerate(r for _, responses in missing for r in responses):
                response.logprobs_T = found.logprobs_BT[row, : len(response)]
                response.entropy_T = found.entropy_BT[row, : len(response)]

    def _refilled(self, selection: Selection, outcome: StepOutcome) -> list[RolloutGroup]:
        """The kept groups; stored ones take the places of those with equal rewards, and places left open."""
        if self.store is None:
            return selection.kept
        varied = [group for group in selection.kept if is_varied(group, self.method)]
        missing = self.plan.prompts - len(varied)
        drawn = self.store.draw(missing, selection.step, exclude={group.prompt.id for group in varied})
        stored = [as_group(self.sources.prompts[group.prompt_id], group) for group in drawn]
        stored = [group for group in stored if self._prepare(group, selection)]
        outcome.num_stored = len(stored)
        flat = [group for group in selection.kept if not is_varied(group, self.method)]
        return [*varied, *stored, *flat[: missing - len(stored)]]

    def _anchor(self, kept: Sequence[RolloutGroup], selection: Selection, step: int) -> AnchorScores:
        if not self.method.needs_anchors:
            return AnchorScores()
        with self.clock.phase("anchors"):
            scores = self.anchor_selector.fix(kept, step)
            self.anchor_selector.collect(selection.sampled, step)
            return scores

    # Training ----------------------------------------------------------------------------------------------

    def _batch(self, kept: Sequence[RolloutGroup], step: int) -> tuple[list[RolloutGroup], Batch]:
        groups = shuffled(kept, self.plan.seed, step)
        if self.method.trains_on_experience:
            groups = [with_experience(group) for group in groups]
        batch = build_batch(
            groups,
            minibatch_groups=self.plan.minibatch_prompts,
            sum_anchor=self.method.sums_anchor,
            mask_truncated=self.plan.mask_truncated,
            max_tokens=self.plan.sampling.max_tokens,
        )
        return groups, replace(batch, progress=(step - 1) / max(self.plan.steps - 1, 1))

    def _score(self, groups: Sequence[RolloutGroup], batch: Batch, step: int) -> Batch:
        """The passes that sampling did not make: the corrupted image, the reference, and a clean one if needed."""
        cap, similar = self.plan.importance_cap, self.method.needs_similarity
        width, units = batch.mask_BT.shape[1], units_of(groups)
        recompute = self.plan.recompute_logprobs or _lacks_logprobs(groups)
        with self.clock.phase("score"):
            if recompute or similar:
                found = self.engine.score(ScoreRequest(units, step, "clean", with_similarity=similar))
                if similar:
                    assert found.similarity_BT is not None
                    batch = replace(batch, similarity_BT=_as_wide(found.similarity_BT, width))
            if recompute:
                clean_BT = _as_wide(found.logprobs_BT, width)
                # What an earlier step sampled keeps the log-probs that were recorded with it.
                is_old_B = batch.given("off_policy_B") | batch.given("stored_B")
                old_BT = torch.where(is_old_B[:, None], batch.old_logprobs_BT, clean_BT)
                entropy_BT = _as_wide(found.entropy_BT, width)
                batch = replace(
                    batch, clean_logprobs_BT=clean_BT, entropy_BT=entropy_BT, old_logprobs_BT=old_BT
                )
            if cap is not None and batch.sampler_logprobs_BT is not None:
                sampler_BT, known_BT = batch.sampler_logprobs_BT, batch.sampled_elsewhere_BT
                weight_BT = truncated_importance(batch.clean_logprobs_BT, sampler_BT, known_BT, cap=cap)
                batch = replace(batch, importance_weight_BT=weight_BT)
            if self.method.needs_corrupted:
                found = self.engine.score(ScoreRequest(units, step, "corrupted"))
                has_image_B = torch.tensor([bool(g.prompt.images) for g in groups for _ in g.responses])
                # Without an image there is nothing to corrupt: c = 0 exactly.
                corrupted_BT = torch.where(
                    has_image_B[:, None], _as_wide(found.logprobs_BT, width), batch.clean_logprobs_BT
                )
                batch = replace(batch, corrupted_logprobs_BT=corrupted_BT)
            if self.method.needs_reference:
                found = self.engine.score(ScoreRequest(units, step, "clean", of_reference=True))
                batch = replace(batch, reference_logprobs_BT=_as_wide(found.logprobs_BT, width))
        return batch

    def _update(self, groups: Sequence[RolloutGroup], batch: Batch, lr: float) -> UpdateSummary:
        """One optimizer step per minibatch."""
        summary, made = UpdateSummary(), []
        with self.clock.phase("update"):
            targets = self.method.trains_on_targets
            for units, rows in minibatches(groups, batch, with_targets=targets):
                update = self.engine.update(units, rows, lr)
                if update.skipped is not None:
                    summary.skipped.append(update.skipped)
                    continue
                made.append(update.terms)
                summary.grad_norms.append(update.grad_norm)
        for terms in made:
            for name, value in terms.items():
                summary.terms[name] = summary.terms.get(name, 0.0) + value / len(made)
        return summary


def stored_response(response: Response, with_logprobs: bool) -> StoredResponse:
    """A correct response as the buffer keeps it."""
    assert response.reward is not None
    logprobs_T, entropy_T = response.logprobs_T if with_logprobs else None, response.entropy_T
    return StoredResponse(
        token_ids=response.token_ids_T.numpy(),
        logprobs=None if logprobs_T is None else logprobs_T.numpy(),
        entropy=None if entropy_T is None else float(entropy_T.mean()),
        accuracy=response.reward.accuracy,
        format=response.reward.format,
    )


def _replayable(group: RolloutGroup) -> list[Response]:
    return [response for response in group.responses if response.correct and not response.truncated]


def _lacks_logprobs(groups: Sequence[RolloutGroup]) -> bool:
    """Whether another program, other weights or another image sampled."""
    responses = [response for group in groups for response in group.responses]
    return any(response.stored or response.logprobs_T is None for response in responses)


def _unscored(response: Response) -> Response:
    """Without the log-probs and entropies, which belong to another image."""
    return replace(response, logprobs_T=None, entropy_T=None, sampler_logprobs_T=None)


def _as_wide(values_BT: Tensor, width: int) -> Tensor:
    """Padded or cut to a width that no response exceeds."""
    return torch.nn.functional.pad(values_BT, (0, width - values_BT.shape[1]))


def _solved_ratio(groups: Sequence[RolloutGroup]) -> float:
    """Share of correct responses among all that were sampled in the step, before filtering."""
    flags = [response.correct for group in groups for response in group.responses]
    return sum(flags) / len(flags) if flags else 0.0
