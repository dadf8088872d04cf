"""One training step, as in the paper's Figure 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from pivot.errors import UserError
from pivot.experience import ReplayGate, StoredResponse
from pivot.method import Diagnostics, Method, allocate_advantage
from pivot.models.encoding import EncodedPrompt, UnreadablePrompt
from pivot.models.policy import Policy
from pivot.models.rows import PromptWithResponses
from pivot.rewards.judge import Judge
from pivot.sampling import sample_responses
from pivot.training.anchors import AnchorScores, AnchorSelector
from pivot.training.batch import StepBatch, build_batch, shuffled, with_experience, with_targets
from pivot.training.clock import PhaseClock
from pivot.training.lookahead import Lookahead
from pivot.training.memory import within_memory
from pivot.training.plan import StepPlan
from pivot.training.scoring import Scorer
from pivot.training.selection import PromptDraw, Quotas, Selection, Sources
from pivot.training.update import Skipped, Updater, UpdateSummary
from pivot.types import Prompt, Response, RolloutGroup


@dataclass
class StepOutcome:
    """Everything a step saw, for metrics and records."""

    step: int
    selection: Selection
    replay_active: bool
    anchors: AnchorScores
    batch: StepBatch | None = None
    diagnostics: Diagnostics | None = None
    update: UpdateSummary | None = None


@dataclass
class Trainer:
    """Owns the walk of one step; everything it needs is handed in."""

    policy: Policy
    reference: Policy | None
    method: Method
    plan: StepPlan
    sources: Sources
    gate: ReplayGate
    judge: Judge
    scorer: Scorer
    anchor_selector: AnchorSelector
    updater: Updater
    clock: PhaseClock
    finished_steps: int = 0
    lookahead: Lookahead = field(init=False)

    def __post_init__(self) -> None:
        # On a GPU both would queue for the same device.
        overlap = self.plan.overlap and self.policy.device.type == "cpu"
        self.lookahead = Lookahead(self.method, self.scorer, self.anchor_selector, self.clock, overlap)

    def step(self) -> StepOutcome:
        """Draw, roll out, verify and filter until the step is full; record, anchor, score, allocate, update."""
        step = self.finished_steps + 1
        selection = self._open(step)
        self.lookahead.begin()
        while visits := selection.next_visits():  # Eq. 6: replayed prompts at the frontier, and fresh ones
            groups = self._roll_out(visits, selection)  # Eq. 1: G responses each
            self._verify(groups)  # R_i
            selection.observe(selection.finite(groups))  # DAPO: 0 < k < G
        selection.close()
        self._record(selection.sampled, step)  # x -> {p-hat, Y+}, whatever the filter said
        outcome = StepOutcome(step, selection, self.gate.is_open, AnchorScores())
        self.gate.observe(_solved_ratio(selection.sampled), step)
        if selection.nonfinite:
            outcome.update = UpdateSummary(skipped=[Skipped("reward", selection.nonfinite)])
        elif selection.kept:
            outcome.anchors = self._anchor(selection, step)  # Eq. 4, 5, 7: y_exp
            batch = self._batch(selection.kept, step)
            self._score(batch, step)  # log p, log q, H
            batch.tensors, outcome.diagnostics = allocate_advantage(
                self.method, batch.tensors
            )  # Eq. 2, 10-15
            outcome.update = self._update(batch)  # Eq. 3, 8, 9, 16
            outcome.batch = batch
        self.policy.forget_features()
        self.finished_steps = step
        return outcome

    def _open(self, step: int) -> Selection:
        replay = self.method.replay if self.gate.is_open else None
        replayed = 0 if replay is None else round(self.plan.prompts * replay.replay_share)
        quotas = Quotas(
            num_fresh=self.plan.prompts - replayed,
            num_replayed=replayed,
            max_tries=self.plan.max_tries if self.method.dynamic_sampling else 1,
            filter_groups=self.method.dynamic_sampling,
            oversample=self.plan.oversample,
            with_experience=self.method.trains_on_experience,
        )
        return Selection(self.sources, step, quotas)

    @property
    def budgets(self) -> dict[str, int]:
        """Tokens held at once: as configured, or less after running out of memory."""
        return {
            "micro_batch_tokens": self.scorer.packing.micro_batch_tokens,
            "batch_tokens": self.plan.batch_tokens,
        }

    @budgets.setter
    def budgets(self, tokens: Mapping[str, int]) -> None:
        self.scorer.packing.micro_batch_tokens = tokens["micro_batch_tokens"]
        self.plan = replace(self.plan, batch_tokens=tokens["batch_tokens"])

    def encoded(self, prompt: Prompt) -> EncodedPrompt:
        return self.policy.encoder.encode(prompt)

    def _roll_out(self, visits: Sequence[PromptDraw], selection: Selection) -> list[RolloutGroup]:
        with self.clock.phase("rollout"):
            visits = [visit for visit in visits if self._is_readable(visit.prompt, selection)]
            prompts = [self.encoded(visit.prompt) for visit in visits]
            kept = {group.prompt.id: self.encoded(group.prompt) for group in selection.kept}
            encoded = kept | {prompt.prompt.id: prompt for prompt in prompts}
            with self.lookahead.beside(visits, selection.kept, encoded, selection.step):
                sampled = within_memory(
                    lambda: self._sample(prompts, selection.step),
                    lambda: self._halve_rollout(prompts),
                    "rollout.batch_tokens",
                )
            selection.visits |= {visit.prompt.id: visit for visit in visits}
            return [
                RolloutGroup(visit.prompt, sampled[index], replayed=visit.draw is not None)
                for index, visit in enumerate(visits)
            ]

    def _sample(self, prompts: Sequence[EncodedPrompt], step: int) -> dict[int, list[Response]]:
        plan = self.plan
        return dict(
            sample_responses(
                self.policy,
                prompts,
                plan.responses,
                plan.sampling,
                key=(plan.seed, step),
                batch_tokens=plan.batch_tokens,
            )
        )

    def _halve_rollout(self, prompts: Sequence[EncodedPrompt]) -> bool:
        smaller = self.plan.halved([len(prompt) for prompt in prompts])
        self.plan = smaller or self.plan
        return smaller is not None

    def _is_readable(self, prompt: Prompt, selection: Selection) -> bool:
        """An image that turns out to be broken costs its prompt, not the run."""
        try:
            self.encoded(prompt)
        except UnreadablePrompt as broken:
            selection.unreadable.append(str(broken))
            return False
        return True

    def _verify(self, groups: Sequence[RolloutGroup]) -> None:
        with self.clock.phase("verify"):
            rows = [(group.prompt, response) for group in groups for response in group.responses]
            rewards = self.judge.judge(
                [prompt for prompt, _ in rows], [response.text for _, response in rows]
            )
            for (_, response), reward in zip(rows, rewards, strict=True):
                response.reward = reward

    def _record(self, groups: Sequence[RolloutGroup], step: int) -> None:
        """p-hat from every visit, filtered or not; successful responses that ended by themselves."""
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
        """Log-probs of what will be stored, where the sampler did not know those of the policy itself."""
        unknown = [(g, [r for r in _replayable(g) if r.logprobs_T is None]) for g in groups]
        found = [(group, responses) for group, responses in unknown if responses]
        if not found:
            return
        with self.clock.phase("score"):
            units = [
                PromptWithResponses(self.encoded(g.prompt), [r.token_ids_T for r in responses])
                for g, responses in found
            ]
            scores = self.scorer.score(units, step, "clean")
            for row, response in enumerate(r for _, responses in found for r in responses):
                response.logprobs_T = scores.logprobs_BT[row, : len(response)]
                response.entropy_T = scores.entropy_BT[row, : len(response)]

    def _anchor(self, selection: Selection, step: int) -> AnchorScores:
        if not self.method.needs_anchors:
            return AnchorScores()
        with self.clock.phase("anchors"):
            encoded = {group.prompt.id: self.encoded(group.prompt) for group in selection.kept}
            scores = self.anchor_selector.fix(
                selection.kept, selection.visits, encoded, step, self.lookahead.rated
            )
            self.anchor_selector.collect(selection.sampled, self.encoded, step)
            return scores

    def _batch(self, kept: Sequence[RolloutGroup], step: int) -> StepBatch:
        if not self.plan.recompute_logprobs:
            _check_logprobs(kept)
        groups = shuffled(kept, self.plan.seed, step)
        if self.method.trains_on_experience:
            groups = [with_experience(group) for group in groups]
        return build_batch(
            groups,
            {group.prompt.id: self.encoded(group.prompt) for group in groups},
            minibatch_groups=self.plan.minibatch_prompts,
            sum_anchor=self.method.sums_anchor,
        )

    def _score(self, batch: StepBatch, step: int) -> None:
        """What decoding did not say: the corrupted image, the reference; and the clean pass where it is asked for."""
        rows, width = batch.tensors, batch.tensors.mask_BT.shape[1]
        with self.clock.phase("score"):
            if self.plan.recompute_logprobs:
                found = self.scorer.score(batch.units, step, "clean", width=width)
                # An experience keeps the log-probs that were recorded with it.
                old_BT = torch.where(
                    rows.given("off_policy_B")[:, None], rows.old_logprobs_BT, found.logprobs_BT
                )
                rows = replace(
                    rows,
                    clean_logprobs_BT=found.logprobs_BT,
                    entropy_BT=found.entropy_BT,
                    old_logprobs_BT=old_BT,
                )
            if self.method.needs_corrupted:
                encoded = {unit.prompt.prompt.id: unit.prompt for unit in batch.units}
                corrupted_BT = self.lookahead.corrupted(batch.groups, encoded, step, width=width)
                has_image_B = torch.tensor([bool(g.prompt.images) for g in batch.groups for _ in g.responses])
                # Without an image there is nothing to take away: c = 0 exactly.
                corrupted_BT = torch.where(has_image_B[:, None], corrupted_BT, rows.clean_logprobs_BT)
                rows = replace(rows, corrupted_logprobs_BT=corrupted_BT)
            if self.method.needs_reference:
                found = self._reference_scorer().score(batch.units, step, "clean", width=width)
                rows = replace(rows, reference_logprobs_BT=found.logprobs_BT)
            if self.reference is not None:
                self.reference.forget_features()
        batch.tensors = rows

    def _reference_scorer(self) -> Scorer:
        assert self.reference is not None, "the method compares with the model that training started from"
        return Scorer(self.reference, self.scorer.corruptor, self.scorer.packing)

    def _update(self, batch: StepBatch) -> UpdateSummary:
        with self.clock.phase("update"):
            return self.updater.update(with_targets(batch) if self.method.trains_on_targets else batch)


def stored_response(response: Response, with_logprobs: bool) -> StoredResponse:
    """A success as the buffer keeps it."""
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
    """Successes that ended by themselves."""
    return [response for response in group.responses if response.correct and not response.truncated]


def _check_logprobs(groups: Sequence[RolloutGroup]) -> None:
    for group in groups:
        if any(response.logprobs_T is None for response in group.responses):
            raise UserError(
                f"the sampler returned no log-probs for prompt {group.prompt.id!r}, and the loss needs them: set "
                "rollout.recompute_logprobs=true, so that the trainer computes them itself"
            )


def _solved_ratio(groups: Sequence[RolloutGroup]) -> float:
    """Share of correct responses among all rollouts of the step, before filtering."""
    flags = [accuracy > 0.5 for group in groups for accuracy in group.accuracies]
    return sum(flags) / len(flags) if flags else 0.0
