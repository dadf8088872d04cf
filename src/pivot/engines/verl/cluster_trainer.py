"""The embedded engine's step with its rollouts, forwards and updates elsewhere. The buffer stays here, with the
driver; so do the draws, the verifier, the advantages and every statistic over the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from pivot.config import Config
from pivot.data.images import ImageError, open_rgb
from pivot.engines.verl.jobs import Ranks
from pivot.engines.verl.rollouts import Rollouts, SampleRequest
from pivot.engines.verl.scoring import RemoteScorer
from pivot.engines.verl.updating import RemoteUpdater
from pivot.models.corruption import Corruptor
from pivot.models.encoding import EncodedPrompt, UnreadablePrompt
from pivot.models.policy import Policy
from pivot.rewards.judge import Judge
from pivot.training import build
from pivot.training.anchors import AnchorScores, AnchorSelector
from pivot.training.clock import PhaseClock
from pivot.training.prompts import expert_demonstrations
from pivot.training.scoring import Scorer
from pivot.training.selection import FreshStream, Selection, Sources
from pivot.training.trainer import StepOutcome, Trainer
from pivot.types import Prompt, Response, RolloutGroup


@dataclass(frozen=True)
class RemoteWorkers:
    """Who does what the driver does not."""

    ranks: Ranks
    rollouts: Rollouts
    rest: Callable[[], object] = lambda: None
    """Lets the replicas give their memory to the ranks; the next weights wake them up."""


@dataclass(kw_only=True)
class ClusterTrainer(Trainer):
    """A `Trainer` whose `policy` knows tokens and images and has no weights."""

    elsewhere: RemoteWorkers
    _outlines: dict[str, EncodedPrompt] = field(default_factory=dict)
    _resting: bool = False

    @property
    def ranks(self) -> Ranks:
        return self.elsewhere.ranks

    @property
    def lr(self) -> float:
        """Of the next updates."""
        assert isinstance(self.updater, RemoteUpdater)
        return self.updater.lr

    @lr.setter
    def lr(self, lr: float) -> None:
        assert isinstance(self.updater, RemoteUpdater)
        self.updater.lr = lr

    def step(self) -> StepOutcome:
        """The embedded engine's; the replicas rest at the latest when it is over."""
        self._resting = False
        outcome = super().step()
        self._rest()
        return outcome

    def encoded(self, prompt: Prompt) -> EncodedPrompt:
        """Its length alone: ranks encode for themselves. Images are opened once, to see that they can be."""
        known = self._outlines.get(prompt.id)
        if known is None:
            try:
                for source in prompt.images:
                    open_rgb(source)
            except ImageError as cause:
                raise UnreadablePrompt(
                    f"prompt {prompt.id!r} has an image that cannot be used: {cause}"
                ) from cause
            known = self._outlines[prompt.id] = outline_of(self.policy, prompt)
        return known

    def _sample(self, prompts: Sequence[EncodedPrompt], step: int) -> dict[int, list[Response]]:
        plan = self.plan
        order = SampleRequest(
            plan.responses, plan.sampling, (plan.seed, step), batch_tokens=plan.batch_tokens
        )
        return dict(self.elsewhere.rollouts.sample([encoded.prompt for encoded in prompts], order))

    def _fill_in_logprobs(self, groups: Sequence[RolloutGroup], step: int) -> None:
        """The ranks score; the replicas have sampled all that the step needs."""
        self._rest()
        super()._fill_in_logprobs(groups, step)

    def _anchor(self, selection: Selection, step: int) -> AnchorScores:
        """What follows the rollouts of a step needs the ranks, and their memory."""
        self._rest()
        return super()._anchor(selection, step)

    def _rest(self) -> None:
        if not self._resting:
            self._resting = True
            self.elsewhere.rest()

    def _reference_scorer(self) -> Scorer:
        scorer = self.scorer
        return RemoteScorer(scorer.policy, scorer.corruptor, scorer.packing, self.ranks, of_reference=True)


def outline_of(policy: Policy, prompt: Prompt) -> EncodedPrompt:
    """As long as the encoded prompt, and nothing else of it."""
    length = policy.encoder.count_tokens(prompt)
    return EncodedPrompt(
        prompt=prompt,
        input_ids_L=torch.zeros(1, dtype=torch.int64).expand(length),
        position_ids_3L=torch.zeros(3, 0, dtype=torch.int64),
        next_position=length,
        images=(),
    )


def build_cluster_trainer(
    config: Config,
    outline: Policy,
    prompts: Mapping[str, Prompt],
    judge: Judge,
    clock: PhaseClock,
    elsewhere: RemoteWorkers,
) -> ClusterTrainer:
    """All parts of a step, as `train.assembly` builds them for the embedded engine."""
    method, seed = config.method, config.train.seed
    packing = build.packing_of(config)
    corruptor = Corruptor(outline.encoder, build.corruption_of(config), seed)
    scorer = RemoteScorer(outline, corruptor, packing, elsewhere.ranks)
    buffer = build.build_buffer(config)
    return ClusterTrainer(
        policy=outline,
        reference=None,
        method=method,
        # Ranks and replicas share their memory: nothing is scored beside a rollout.
        plan=replace(elsewhere.rollouts.plan(build.plan_of(config)), overlap=False),
        sources=Sources(prompts, FreshStream(list(prompts), seed), buffer),
        gate=build.build_gate(config),
        judge=judge,
        scorer=scorer,
        anchor_selector=AnchorSelector(
            method, scorer, buffer, expert_demonstrations(config, prompts, outline)
        ),
        updater=RemoteUpdater(method, packing, elsewhere.ranks),
        clock=clock,
        elsewhere=elsewhere,
    )
