"""PIVOT in one file: reinforcement learning that pays attention to the image. Read this first.

    python examples/pivot_loop.py --steps 20

trains the shipped tiny vision-language model on procedural pictures, on one CPU core. A step is:

    fresh and replayed prompts -> sample -> reward -> filter -> record -> anchor -> score -> allocate -> update

Equation numbers are those of docs/paper_map.md. The mathematics is in `pivot.method`, as functions of tensors. Suffixes
are dimensions: P prompts, G responses per prompt, B = P*G responses, T response tokens, N candidates.

`pivot train` takes the same steps in the same order and adds what changes no formula: it replaces the groups that
the filter drops, splits batches, and writes checkpoints, metrics and reports. `tests/test_example.py` checks that both
compute the same advantages and the same loss.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from pivot.experience import ExperienceBuffer, ReplayGate, StoredResponse
from pivot.method import (
    Batch,
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

BETA = 0.1  # strength of the modulation, Eq. 14; ours, the paper prints no value
ANCHOR_COEF = 0.3  # lambda_exp, Eq. 16; ours as well
FORMAT_COEF = 0.1  # weight of the format advantage
ENTROPY_COEF = 0.06  # weight of the entropy penalty
REPLAY_SHARE = 0.5  # N_off / N once replay is on
SOLVED_THRESHOLD = 0.45  # replay starts when this share of the responses is correct ...
WARMUP_SHARE = 0.2  # ... or after this share of the steps
Candidates = Mapping[str, Sequence[StoredResponse]]  # prompt id -> stored responses
CORRUPTION = Corruption(kind="patch", probability=0.6)  # black out 60% of the image's patches


@dataclass(frozen=True)
class Sizes:
    """The size of a run."""

    steps: int = 20
    prompts: int = 8  # N, per step
    responses: int = 8  # G, per prompt
    updates: int = 2  # minibatches per step
    max_tokens: int = 96
    problems: int = 256  # in the training set
    lr: float = 1e-4
    seed: int = 0


def train(sizes: Sizes, show: Callable[[dict[str, float]], None] = print) -> tuple[Policy, ExperienceBuffer]:
    """The whole method."""
    policy = load_policy("tiny")
    optimizer = AdamW(policy.model.parameters(), lr=sizes.lr, weight_decay=0.01)
    corruptor = Corruptor(policy.encoder, CORRUPTION, sizes.seed)
    buffer = ExperienceBuffer(responses_per_prompt=sizes.responses, seed=sizes.seed)
    gate = ReplayGate(SOLVED_THRESHOLD, max_warmup_steps=round(WARMUP_SHARE * sizes.steps))
    problems = {prompt.id: prompt for prompt in procedural.dataset("train", sizes.problems)}
    waiting = list(problems)
    with Verifier() as verifier:
        for step in range(1, sizes.steps + 1):
            # Replayed prompts are those the policy solves sometimes. The candidates for their anchors are
            # fixed now, so that nothing sampled in this step can become an anchor.
            num_replayed = round(REPLAY_SHARE * sizes.prompts) if gate.is_open else 0
            draws = buffer.draw(num_replayed, step=step)  # Eq. 6
            candidates = {draw.prompt_id: buffer.candidates(draw.prompt_id) for draw in draws}
            fresh = [name for name in waiting if name not in candidates][: sizes.prompts - len(candidates)]
            waiting = [name for name in waiting if name not in fresh] + fresh

            groups = sample(policy, [problems[name] for name in [*candidates, *fresh]], sizes, step)  # Eq. 1
            reward(verifier, groups)  # R
            # A group that is all right or all wrong has an advantage of zero: nothing to learn from.
            kept = [group for group in groups if group.is_informative]
            record(buffer, groups, step)  # x -> {p-hat, Y+}, dropped groups included
            accuracy = sum(group.success_rate for group in groups) / len(groups)
            gate.observe(accuracy, step)
            line = {"step": step, "accuracy": accuracy, "replayed": len(candidates), "buffer": len(buffer)}

            if kept:
                choose_anchors(policy, corruptor, kept, candidates, step)  # Eq. 4, 5, 7
                rows = as_rows(policy, kept)
                batch = as_batch(kept, score(policy, corruptor, rows, step))  # log p, log q, H
                batch, support_BT = allocate(batch)  # Eq. 2, 10-15
                line["loss"] = update(policy, optimizer, rows, batch, sizes.updates)  # Eq. 3, 8, 9, 16
                right_BT = batch.mask_BT & batch.correct_B[:, None]
                line["c_right"] = float(support_BT[right_BT].mean())
                line["c_wrong"] = float(support_BT[batch.mask_BT & ~right_BT].mean())
            policy.forget_features()  # image features belong to this step's weights and masks
            show({name: round(value, 4) for name, value in line.items()})
    return policy, buffer


def sample(policy: Policy, prompts: Sequence[Prompt], sizes: Sizes, step: int) -> list[RolloutGroup]:
    """G responses per prompt, from one prefill (Eq. 1)."""
    encoded = [policy.encoder.encode(prompt) for prompt in prompts]
    sampling = Sampling(temperature=1.0, max_tokens=sizes.max_tokens)
    drawn = dict(sample_responses(policy, encoded, sizes.responses, sampling, key=(sizes.seed, step)))
    return [RolloutGroup(prompt, drawn[i]) for i, prompt in enumerate(prompts)]


def reward(verifier: Verifier, groups: Sequence[RolloutGroup]) -> None:
    """R: is the answer in the box right? And does the response follow the format?"""
    for group in groups:
        texts = [response.text for response in group.responses]
        rewards = verifier.grade_many(texts, [group.prompt.answer] * len(texts))
        for response, found in zip(group.responses, rewards, strict=True):
            response.reward = found


def record(buffer: ExperienceBuffer, groups: Sequence[RolloutGroup], step: int) -> None:
    """x -> {p-hat, Y+}: the latest success rate, and the correct responses that were not cut off."""
    for group in groups:
        correct = [response for response in group.responses if response.correct]
        buffer.record(
            group.prompt.id,
            num_correct=len(correct),
            num_responses=len(group.responses),
            responses=[StoredResponse(r.token_ids_T.numpy()) for r in correct if not r.truncated],
            step=step,
        )


def as_rows(policy: Policy, groups: Sequence[RolloutGroup]) -> list[PromptWithResponses]:
    """Each group's encoded prompt with the token ids of its responses."""
    encode = policy.encoder.encode
    return [PromptWithResponses(encode(g.prompt), [r.token_ids_T for r in g.responses]) for g in groups]


def choose_anchors(
    policy: Policy, corruptor: Corruptor, groups: Sequence[RolloutGroup], candidates: Candidates, step: int
) -> None:
    """y_exp: of the more certain half of the stored responses, the one that depends most on the image."""
    for group in groups:
        if group.prompt.id not in candidates:
            continue
        responses = [torch.from_numpy(stored.token_ids).long() for stored in candidates[group.prompt.id]]
        rows = [PromptWithResponses(policy.encoder.encode(group.prompt), responses)]
        found = score(policy, corruptor, rows, step)
        assert found.divergence_BT is not None
        length_N = found.mask_BT.sum(dim=1)
        dependency_N = found.divergence_BT.sum(dim=1) / length_N  # Eq. 4: V(y), under one corrupted image
        entropy_N = found.entropy_BT.sum(dim=1) / length_N  # Eq. 5: H(y)
        best = select_anchor(entropy_N, dependency_N, keep=0.5)  # Eq. 7
        group.anchor = Anchor(responses[best], logprobs_T=found.logprobs_BT[best, : length_N[best]])


@torch.no_grad()
def score(
    policy: Policy, corruptor: Corruptor, rows: Sequence[PromptWithResponses], step: int
) -> ResponseStatistics:
    """log p, log q, H and KL(p||q) of each response token: one pass with the image, one with it corrupted."""
    prompts = [row.prompt for row in rows]
    clean = policy.features(prompts)
    corrupted = policy.features([corruptor.corrupt(prompt, step) for prompt in prompts], "corrupted")
    # A tree: the prompt is computed once for all its responses.
    return policy.score(rows, clean, layout="tree", corrupted_features=corrupted)


def as_batch(groups: Sequence[RolloutGroup], scores: ResponseStatistics) -> Batch:
    """The responses of all groups as the rows of one batch."""
    rewards = [response.reward for group in groups for response in group.responses]
    # log pi(y_exp) of Eq. 8, the mean over the anchor's tokens; NaN without an anchor.
    logprobs = [None if group.anchor is None else group.anchor.logprobs_T for group in groups]
    confidence = torch.stack([torch.tensor(math.nan) if x is None else x.mean() for x in logprobs])
    return Batch(
        mask_BT=scores.mask_BT,
        rewards_B=torch.tensor([found.accuracy if found else 0.0 for found in rewards]),
        format_B=torch.tensor([found.format if found else 0.0 for found in rewards]),
        group_size=len(groups[0].responses),
        clean_logprobs_BT=scores.logprobs_BT,
        entropy_BT=scores.entropy_BT,
        old_logprobs_BT=scores.logprobs_BT,
        corrupted_logprobs_BT=scores.corrupted_logprobs_BT,
        anchor_logprob_B=confidence.repeat_interleave(len(groups[0].responses)),
    )


def allocate(batch: Batch) -> tuple[Batch, Tensor]:
    """The advantage of each token: its group's, and more of it where the image supports the token. And c."""
    mask_BT, corrupted_BT = batch.mask_BT, batch.given("corrupted_logprobs_BT")
    advantage_B = group_advantage(batch.by_prompt(batch.rewards_B)).flatten()  # Eq. 2
    support_BT = visual_support(batch.clean_logprobs_BT, corrupted_BT, mask_BT)  # Eq. 10: c
    utility_BT = token_utility(support_BT, batch.entropy_BT, mask_BT)  # Eq. 11-13: F, u, U
    advantage_BT = modulate_advantage(
        advantage_B, utility_BT, batch.correct_B, mask_BT, beta=BETA
    )  # Eq. 14, 15
    format_B = FORMAT_COEF * group_advantage(batch.by_prompt(batch.format_B)).flatten()  # not a visual matter
    advantage_BT = (advantage_BT + format_B[:, None]) * mask_BT
    return replace(batch, advantage_BT=advantage_BT, group_advantage_B=advantage_B), support_BT


def pivot_loss(batch: Batch) -> Tensor:
    """L = L_RLVR + lambda_exp * L_exp (Eq. 16), and the entropy penalty; `new_logprobs_BT` carries the gradient."""
    logprobs_BT, mask_BT = batch.given("new_logprobs_BT"), batch.mask_BT
    advantage_B, anchor_B = batch.given("group_advantage_B"), batch.given("anchor_logprob_B")
    rlvr = policy_loss(logprobs_BT, batch.old_logprobs_BT, batch.given("advantage_BT"), mask_BT)  # Eq. 3
    # Eq. 8, 9: right responses should rise above their anchor's confidence, wrong ones sink below it.
    experience = calibration_loss(logprobs_BT, anchor_B, advantage_B, batch.correct_B, mask_BT)
    return rlvr + ENTROPY_COEF * nll_penalty(logprobs_BT, mask_BT) + ANCHOR_COEF * experience


def update(
    policy: Policy, optimizer: Optimizer, rows: Sequence[PromptWithResponses], batch: Batch, num_updates: int
) -> float:
    """One optimizer step per minibatch, in which replayed and fresh groups mix; returns the mean loss."""
    losses = []
    index_PG = batch.by_prompt(torch.arange(len(batch.mask_BT)))
    for first in range(min(num_updates, len(rows))):
        chosen = rows[first::num_updates]
        features = policy.features([row.prompt for row in chosen])
        found = policy.score(chosen, features, layout="tree", with_entropy=False)
        part = batch.select(index_PG[first::num_updates].flatten()).with_forward(found.logprobs_BT)
        loss = pivot_loss(part)
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
