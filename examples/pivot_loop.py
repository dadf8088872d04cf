"""PIVOT in one file: reinforcement learning that pays attention to the image. Read this first.

    python examples/pivot_loop.py --steps 20

trains the shipped tiny vision-language model on procedural pictures, on one CPU core. A step is:

    draw fresh and replayed prompts -> fix anchors -> roll out -> verify -> record -> filter
    -> score clean and corrupted -> allocate advantage -> update

Equations are numbered as in docs/paper_map.md. The mathematics is `pivot.method`, functions of tensors whose
suffixes are dimensions: P prompts, G responses a prompt, B = P*G responses, T response tokens, N candidates.

`pivot train` walks the same way and adds what changes no formula: other groups in place of those that the
filter drops, micro-batches, checkpoints, metrics, reports. `tests/test_example.py` holds this file to the
same advantages and the same loss.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pivot.experience import ExperienceBuffer, ReplayGate, StoredResponse
from pivot.method import (
    anchor_logprob,
    calibration_loss,
    group_advantage,
    modulate_advantage,
    nll_penalty,
    policy_loss,
    select_anchor,
    token_utility,
    visual_support,
)
from pivot.models.corruption import Corruption, Corruptor
from pivot.models.loading import load_policy
from pivot.models.policy import Policy, ResponseStatistics
from pivot.models.rows import PromptWithResponses
from pivot.rewards.verifier import Verifier
from pivot.sampling import Sampling, sample_responses
from pivot.tiny import procedural
from pivot.types import Anchor, Prompt, RolloutGroup

BETA = 0.1  # strength of the modulation, Eq. 14; ours: the paper prints no value
ANCHOR_COEF = 0.3  # lambda_exp, Eq. 16; ours as well
FORMAT_COEF = 0.1  # weight of the format advantage
ENTROPY_COEF = 0.06  # weight of the entropy penalty
REPLAY_SHARE = 0.5  # N_off / N once replay is on
SOLVED_THRESHOLD = 0.45  # replay starts when this share of the responses is correct ...
WARMUP_SHARE = 0.2  # ... or after this share of the steps
CORRUPTION = Corruption(kind="patch", probability=0.6)  # I~: black out 60% of the image's patches


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    steps: int = 20
    prompts: int = 8
    """N, the prompts of a step."""
    responses: int = 8
    """G, the responses of a prompt."""
    updates: int = 2
    """Minibatches that a step's groups are divided into."""
    max_tokens: int = 96
    problems: int = 256
    """Size of the training set."""
    lr: float = 1e-4
    seed: int = 0


@dataclass
class StepLine:
    """What is printed of a step; NaN where the filter left nothing to learn from."""

    step: int
    accuracy: float
    """Share of correct responses among all rollouts, before the filter."""
    replay_share: float
    buffer_size: int
    support_right: float = math.nan
    """Mean c over the tokens of correct responses; below, of wrong ones."""
    support_wrong: float = math.nan
    loss: float = math.nan

    def __str__(self) -> str:
        return (
            f"step {self.step:3d}  accuracy {self.accuracy:.2f}  replayed {self.replay_share:.2f}  "
            f"buffer {self.buffer_size:3d}  loss {self.loss:+.4f}  "
            f"c of right/wrong {self.support_right:+.3f} {self.support_wrong:+.3f}"
        )


@dataclass
class TrainingRows:
    """The responses that a step trains on, group by group, at the weights of its start."""

    units: list[PromptWithResponses]
    """P of them: a prompt with the token ids of its G responses."""
    correct_B: Tensor
    anchor_logprob_B: Tensor
    """The anchor's mean token log-probability; NaN for rows without an anchor."""
    group_advantage_B: Tensor
    support_BT: Tensor
    """c."""
    advantage_BT: Tensor
    old_logprobs_BT: Tensor
    mask_BT: Tensor

    def of_groups(self, groups: Tensor) -> TrainingRows:
        """The rows of some of the groups, cut to the longest response among them."""
        num_responses = len(self.mask_BT) // len(self.units)
        b = (groups[:, None] * num_responses + torch.arange(num_responses)).flatten()
        width = int(self.mask_BT[b].sum(dim=1).max())
        by_row = (self.correct_B, self.anchor_logprob_B, self.group_advantage_B)
        by_token = (self.support_BT, self.advantage_BT, self.old_logprobs_BT, self.mask_BT)
        return TrainingRows(
            [self.units[g] for g in groups.tolist()],
            *(values_B[b] for values_B in by_row),
            *(values_BT[b, :width] for values_BT in by_token),
        )

    def mean_support(self, *, correct: bool) -> float:
        """Mean c over the tokens of the correct or of the wrong responses."""
        return float(self.support_BT[self.mask_BT & (self.correct_B == correct)[:, None]].mean())


def train(sizes: Sizes, show: Callable[[StepLine], None] = print) -> tuple[Policy, ExperienceBuffer]:
    """The whole method."""
    policy = load_policy("tiny")
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=sizes.lr, weight_decay=0.01)
    corruptor = Corruptor(policy.encoder, CORRUPTION, sizes.seed)
    buffer = ExperienceBuffer(responses_per_prompt=sizes.responses, seed=sizes.seed)
    gate = ReplayGate(SOLVED_THRESHOLD, max_warmup_steps=round(WARMUP_SHARE * sizes.steps))
    problems = {prompt.id: prompt for prompt in procedural.dataset("train", sizes.problems)}
    waiting = list(problems)
    with Verifier() as verifier:
        for step in range(1, sizes.steps + 1):
            # Replayed prompts are those at the frontier of what the policy can do; fresh ones fill up.
            num_replayed = round(REPLAY_SHARE * sizes.prompts) if gate.is_open else 0
            replayed = [draw.prompt_id for draw in buffer.draw(num_replayed, step=step)]  # Eq. 6
            fresh = [name for name in waiting if name not in replayed][: sizes.prompts - len(replayed)]
            waiting = [name for name in waiting if name not in fresh] + fresh
            prompts = [problems[name] for name in replayed + fresh]

            # Anchors are fixed before anything new is sampled, and are no members of their groups.
            anchors = {name: fix_anchor(policy, corruptor, problems[name], buffer, step) for name in replayed}
            groups = roll_out(policy, prompts, anchors, sizes, step)  # Eq. 1
            verify(verifier, groups)  # R
            record(buffer, groups, step)  # x -> {p-hat, Y+}
            accuracy = sum(group.success_rate for group in groups) / len(groups)
            gate.observe(accuracy, step)
            line = StepLine(step, accuracy, len(replayed) / len(groups), len(buffer))

            # A group that is all right or all wrong has an advantage of zero: nothing to learn from.
            if kept := [group for group in groups if group.is_informative]:
                units = as_units(policy, kept)
                scores = score(policy, corruptor, units, step)  # log p, log q, H
                rows = allocate(kept, units, scores)  # Eq. 2, 10-15
                line.loss = update(policy, optimizer, rows, sizes.updates)  # Eq. 3, 8, 9, 16
                line.support_right = rows.mean_support(correct=True)
                line.support_wrong = rows.mean_support(correct=False)
            policy.forget_features()  # image features belong to this step's weights and masks
            show(line)
    return policy, buffer


def as_units(policy: Policy, groups: Sequence[RolloutGroup]) -> list[PromptWithResponses]:
    """Each group's prompt, its image cut into patches, with the token ids of its responses."""
    return [
        PromptWithResponses(policy.encoder.encode(g.prompt), [r.token_ids_T for r in g.responses])
        for g in groups
    ]


@torch.no_grad()
def score(
    policy: Policy, corruptor: Corruptor, units: Sequence[PromptWithResponses], step: int
) -> ResponseStatistics:
    """log p, log q, H and KL(p||q) of each response token: a pass with the image, one with it corrupted."""
    prompts = [unit.prompt for unit in units]
    clean = policy.features(prompts)
    corrupted = policy.features([corruptor.corrupt(prompt, step) for prompt in prompts], "corrupted")
    # A tree: the prompt is computed once for all its responses.
    return policy.score(units, clean, layout="tree", corrupted_features=corrupted)


def fix_anchor(
    policy: Policy, corruptor: Corruptor, prompt: Prompt, buffer: ExperienceBuffer, step: int
) -> Anchor:
    """y_exp: of the stored responses' more certain half, the one that depends most on the image."""
    candidates = [torch.from_numpy(c.token_ids).long() for c in buffer.candidates(prompt.id)]
    found = score(policy, corruptor, [PromptWithResponses(policy.encoder.encode(prompt), candidates)], step)
    assert found.divergence_BT is not None
    length_N = found.mask_BT.sum(dim=1)
    dependency_N = found.divergence_BT.sum(dim=1) / length_N  # Eq. 4: V(y), under one and the same I~
    entropy_N = found.entropy_BT.sum(dim=1) / length_N  # Eq. 5: H(y)
    best = select_anchor(entropy_N, dependency_N, keep=0.5)  # Eq. 7
    return Anchor(candidates[best], logprobs_T=found.logprobs_BT[best, : length_N[best]])


def roll_out(
    policy: Policy, prompts: Sequence[Prompt], anchors: dict[str, Anchor], sizes: Sizes, step: int
) -> list[RolloutGroup]:
    """G responses a prompt, from one prefill (Eq. 1)."""
    encoded = [policy.encoder.encode(prompt) for prompt in prompts]
    sampling = Sampling(temperature=1.0, max_tokens=sizes.max_tokens)
    drawn = dict(sample_responses(policy, encoded, sizes.responses, sampling, key=(sizes.seed, step)))
    return [
        RolloutGroup(prompt, drawn[i], replayed=prompt.id in anchors, anchor=anchors.get(prompt.id))
        for i, prompt in enumerate(prompts)
    ]


def verify(verifier: Verifier, groups: Sequence[RolloutGroup]) -> None:
    """R: is the answer in the box right? And does the response follow the template?"""
    for group in groups:
        texts = [response.text for response in group.responses]
        rewards = verifier.grade_many(texts, [group.prompt.answer] * len(texts))
        for response, reward in zip(group.responses, rewards, strict=True):
            response.reward = reward


def record(buffer: ExperienceBuffer, groups: Sequence[RolloutGroup], step: int) -> None:
    """x -> {p-hat, Y+}: the latest success rate, and the successful responses that ended by themselves."""
    for group in groups:
        correct = [r for r in group.responses if r.reward is not None and r.reward.correct]
        buffer.record(
            group.prompt.id,
            num_correct=len(correct),
            num_responses=len(group.responses),
            responses=[StoredResponse(r.token_ids_T.numpy()) for r in correct if not r.truncated],
            step=step,
        )


def allocate(
    groups: Sequence[RolloutGroup], units: list[PromptWithResponses], scores: ResponseStatistics
) -> TrainingRows:
    """An advantage for each token: its group's, and more of it where the image supports the token."""
    assert scores.corrupted_logprobs_BT is not None
    mask_BT = scores.mask_BT
    rewards_PG = torch.tensor([group.accuracies for group in groups])
    format_PG = torch.tensor([[r.reward.format if r.reward else 0.0 for r in g.responses] for g in groups])
    correct_B = rewards_PG.flatten() > 0.5
    advantage_B = group_advantage(rewards_PG).flatten()  # Eq. 2
    support_BT = visual_support(scores.logprobs_BT, scores.corrupted_logprobs_BT, mask_BT)  # Eq. 10: c
    utility_BT = token_utility(support_BT, scores.entropy_BT, mask_BT)  # Eq. 11-13: F, u, U
    advantage_BT = modulate_advantage(advantage_B, utility_BT, correct_B, mask_BT, beta=BETA)  # Eq. 14, 15
    format_B = FORMAT_COEF * group_advantage(format_PG).flatten()  # form has nothing to do with the image
    return TrainingRows(
        units=units,
        correct_B=correct_B,
        anchor_logprob_B=torch.stack([_confidence(g.anchor) for g in groups for _ in g.responses]),
        group_advantage_B=advantage_B,
        support_BT=support_BT,
        advantage_BT=(advantage_BT + format_B[:, None]) * mask_BT,
        old_logprobs_BT=scores.logprobs_BT,
        mask_BT=mask_BT,
    )


def _confidence(anchor: Anchor | None) -> Tensor:
    """log pi(y_exp) of Eq. 8, its mean over tokens; NaN without an anchor."""
    if anchor is None or anchor.logprobs_T is None:
        return torch.tensor(torch.nan)
    return anchor_logprob(anchor.logprobs_T[None], torch.ones(1, len(anchor.logprobs_T)))[0]


def pivot_loss(logprobs_BT: Tensor, rows: TrainingRows) -> Tensor:
    """L = L_RLVR + lambda_exp * L_exp (Eq. 16), and the entropy penalty; the gradient is `logprobs_BT`'s."""
    mask_BT = rows.mask_BT
    rlvr = policy_loss(logprobs_BT, rows.old_logprobs_BT, rows.advantage_BT, mask_BT)  # Eq. 3
    # Eq. 8, 9: right responses are to rise above their anchor's confidence, wrong ones to sink below it.
    experience = calibration_loss(
        logprobs_BT, rows.anchor_logprob_B, rows.group_advantage_B, rows.correct_B, mask_BT
    )
    return rlvr + ENTROPY_COEF * nll_penalty(logprobs_BT, mask_BT) + ANCHOR_COEF * experience


def update(policy: Policy, optimizer: torch.optim.Optimizer, rows: TrainingRows, num_updates: int) -> float:
    """One optimizer step a minibatch, in which replayed and fresh groups mix; returns the mean loss."""
    losses = []
    for first in range(min(num_updates, len(rows.units))):
        part = rows.of_groups(torch.arange(first, len(rows.units), num_updates))
        features = policy.features([unit.prompt for unit in part.units])
        found = policy.score(part.units, features, layout="tree", with_entropy=False)
        loss = pivot_loss(found.logprobs_BT, part)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    return sum(losses) / len(losses)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=Sizes.steps)
    train(Sizes(steps=parser.parse_args().steps))
