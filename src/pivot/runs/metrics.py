"""A step's row of metrics.jsonl; docs/metrics.md explains every key."""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from pivot.experience import ExperienceBuffer
from pivot.method import Method, sampler_mismatch
from pivot.rewards.judge import NOT_REWARDED
from pivot.training.step import StepOutcome
from pivot.types import Response, Reward, RolloutGroup

Row = dict[str, float | list[int]]
QUANTILES = (5, 25, 50, 75, 95)
TOTAL_RESPONSES = "rollout/total_responses"
UNLIKELY = 0.1
"""Tokens below this probability count as unlikely."""
COUNTS = ("ratio_sum", "ratio_tokens", "ratio_max", "clip_low_tokens", "clip_high_tokens", "dual_clip_tokens")
"""What an update reports beside the terms of its loss."""


def step_metrics(outcome: StepOutcome, method: Method, buffer: ExperienceBuffer) -> Row:
    """Everything that repeats exactly for a seed."""
    row: Row = {"step": outcome.step}
    row |= _rewards(outcome.selection.sampled, method)
    row |= _sets(outcome)
    row |= _rollout(outcome)
    row |= _visual(outcome)
    if method.replay is not None:
        row |= _buffer(outcome, buffer)
    return row | _optimisation(outcome)


def _rewards(groups: Sequence[RolloutGroup], method: Method) -> Row:
    if not groups:
        return {}
    rewards = [r.reward for g in groups for r in g.responses if r.reward is not None]
    form = _mean([reward.format for reward in rewards])
    row: Row = {
        "reward/accuracy": _mean([reward.correct for reward in rewards]),
        "reward/format": form,
        "reward/mean": _mean([reward.accuracy for reward in rewards]) + method.advantage.format_coef * form,
        "reward/solved_prompts": _mean([g.success_rate == 1 for g in groups]),
        "reward/unsolved_prompts": _mean([g.success_rate == 0 for g in groups]),
        **_reward_functions(rewards),
    }
    for name, part in (
        ("fresh", [g for g in groups if not g.replayed]),
        ("replay", [g for g in groups if g.replayed]),
    ):
        if part:
            row[f"reward/{name}_accuracy"] = _mean([g.success_rate for g in part])
    return row


def _sets(outcome: StepOutcome) -> Row:
    """Accuracy and share of each data set, if there are several."""
    groups, set_of = outcome.selection.sampled, outcome.selection.sources.set_of
    row: Row = {}
    for name in dict.fromkeys(set_of[g.prompt.id] for g in groups) if set_of else ():
        part = [g.success_rate for g in groups if set_of[g.prompt.id] == name]
        row |= {f"data/{name}/accuracy": _mean(part), f"data/{name}/share": len(part) / len(groups)}
    return row


def _reward_functions(rewards: Sequence[Reward]) -> Row:
    """The mean of each function over the rows that it applies to, and the share of rows without any reward."""
    row: Row = {}
    for name in dict.fromkeys(name for reward in rewards for name in reward.parts):
        values = [value for reward in rewards if (value := reward.parts.get(name)) is not None]
        if values:
            row[f"reward/{name}"] = _mean(values)
    if any(reward.reason == NOT_REWARDED for reward in rewards):
        row["reward/unrewarded"] = _mean([reward.reason == NOT_REWARDED for reward in rewards])
    return row


def _rollout(outcome: StepOutcome) -> Row:
    selection = outcome.selection
    responses = [r for g in selection.sampled for r in g.responses]
    lengths = [len(r) for r in responses]
    return {
        "rollout/length_mean": _mean(lengths),
        "rollout/length_max": max(lengths, default=0),
        "rollout/truncated_share": _mean([r.truncated for r in responses]),
        **_entropy(outcome, responses),
        **_mismatch(outcome),
        "rollout/groups": len(selection.sampled),
        "rollout/groups_wanted": selection.quotas.total,
        "rollout/groups_kept": len(selection.kept),
        "rollout/groups_surplus": len(selection.surplus),
        "rollout/groups_dropped": len(selection.sampled) - len(selection.kept) - len(selection.surplus),
        "rollout/tries": selection.rounds,
        "rollout/tokens": sum(lengths),
        TOTAL_RESPONSES: outcome.total.responses,
        "rollout/total_tokens": outcome.total.tokens,
        **({} if outcome.noise_level is None else {"rollout/noise_level": outcome.noise_level}),
        **({} if outcome.num_stored is None else {"rollout/groups_stored": outcome.num_stored}),
    }


def _entropy(outcome: StepOutcome, responses: Sequence[Response]) -> Row:
    """Mean over all sampled tokens; over those that were trained on if the sampler does not return entropies."""
    known = [float(r.entropy_T.sum()) for r in responses if r.entropy_T is not None]
    if len(known) == len(responses):
        return {"rollout/entropy": sum(known) / max(1, sum(map(len, responses)))}
    batch = outcome.batch
    return {} if batch is None else {"rollout/entropy": _masked_mean(batch.entropy_BT, batch.mask_BT)}


def _mismatch(outcome: StepOutcome) -> Row:
    """How far the sampler's log-probs are from the trainer's, on the tokens trained on; {} for the native sampler."""
    batch = outcome.batch
    if batch is None or batch.sampler_logprobs_BT is None:
        return {}
    found = sampler_mismatch(batch.clean_logprobs_BT, batch.sampler_logprobs_BT, batch.sampled_elsewhere_BT)
    return {
        "rollout/mismatch_kl": float(found.divergence),
        "rollout/mismatch_max_ratio": float(found.max_ratio),
    }


def _visual(outcome: StepOutcome) -> Row:
    batch, found = outcome.batch, outcome.diagnostics
    row: Row = {}
    if outcome.anchors.dependency is not None:
        row["visual/dependency"] = outcome.anchors.dependency
    if batch is None or found is None or found.support_BT is None or found.utility_BT is None:
        return row
    correct_BT = batch.correct_B[:, None] & batch.mask_BT
    wrong_BT = ~batch.correct_B[:, None] & batch.mask_BT
    row |= {
        "visual/support_mean": _masked_mean(found.support_BT, batch.mask_BT),
        "visual/support_correct": _masked_mean(found.support_BT, correct_BT),
        "visual/support_wrong": _masked_mean(found.support_BT, wrong_BT),
        "visual/unlikely_weight": unlikely_weight(
            batch.clean_logprobs_BT, batch.given("group_advantage_B"), found.utility_BT, batch.mask_BT
        ),
    }
    if found.support_clipped_share is not None:
        row["visual/support_clipped_share"] = float(found.support_clipped_share)
    if found.beta is not None:
        row["visual/beta"] = float(found.beta)
    if found.protected_BT is not None:
        row["visual/protected_share"] = _masked_mean(found.protected_BT.float(), batch.mask_BT)
    levels = torch.tensor([q / 100 for q in QUANTILES])
    values = _quantiles(found.utility_BT[batch.mask_BT], levels)
    return row | {f"visual/utility_p{q:02d}": value for q, value in zip(QUANTILES, values, strict=True)}


def unlikely_weight(logprobs_BT: Tensor, advantage_B: Tensor, utility_BT: Tensor, mask_BT: Tensor) -> float:
    """The share of Eq. 14's addition on unlikely tokens, weighted by (1 - p) |A U| as gradients are."""
    probability_BT = logprobs_BT.exp()
    added_BT = (advantage_B[:, None] * utility_BT).abs() * (1 - probability_BT)
    added_BT = torch.where(mask_BT, added_BT, 0.0)
    return float(added_BT[probability_BT < UNLIKELY].sum() / added_BT.sum().clamp(min=1e-12))


def _buffer(outcome: StepOutcome, buffer: ExperienceBuffer) -> Row:
    stats = buffer.stats(outcome.step)
    kept = outcome.selection.kept
    row: Row = {
        "buffer/size": stats.size,
        "buffer/eligible": stats.eligible,
        "buffer/responses": stats.responses,
        "buffer/megabytes": stats.bytes / 1e6,
        "buffer/success_histogram": list(stats.success_histogram),
        "buffer/replay_active": float(outcome.replay_active),
        "buffer/replay_share": _mean([g.replayed for g in kept]),
        "buffer/score_age": outcome.anchors.age,
    }
    row |= replay_gain(outcome.selection.sampled)
    anchors = [g.anchor for g in kept if g.anchor is not None]
    if anchors:
        row["buffer/anchor_age"] = _mean([a.age for a in anchors])
        row["buffer/times_drawn"] = _mean([a.times_drawn for a in anchors])
    return row


def replay_gain(sampled: Sequence[RolloutGroup]) -> Row:
    """Whether replay pays: informative groups per sampled group, beyond what fresh prompts alone would have given.

    A group is informative if some of its responses are correct and some are not. The gain is linear in the counts, so
    that its mean over steps means something.
    """
    fresh = [group.is_informative for group in sampled if not group.replayed]
    replayed = [group.is_informative for group in sampled if group.replayed]
    if not fresh or not replayed:
        return {}
    gain = len(replayed) / len(sampled) * (_mean(replayed) - _mean(fresh))
    return {
        "buffer/informative_fresh": _mean(fresh),
        "buffer/informative_replayed": _mean(replayed),
        "buffer/replay_gain": gain,
    }


def _optimisation(outcome: StepOutcome) -> Row:
    update = outcome.update
    row: Row = {"optim/lr": outcome.lr, "optim/updates": 0, "optim/skipped_updates": 0}
    if update is None:
        return row
    row |= {"optim/updates": update.num_updates, "optim/skipped_updates": len(update.skipped)}
    if not update.num_updates:
        return row
    terms = update.terms
    tokens = max(terms["ratio_tokens"], 1.0)
    row |= {f"loss/{name}": value for name, value in terms.items() if name not in COUNTS}
    return row | {
        "optim/grad_norm": _mean(update.grad_norms),
        "optim/grad_norm_max": max(update.grad_norms),
        "optim/ratio_mean": terms["ratio_sum"] / tokens,
        "optim/ratio_max": terms["ratio_max"],
        "optim/clip_low_share": terms["clip_low_tokens"] / tokens,
        "optim/clip_high_share": terms["clip_high_tokens"] / tokens,
        "optim/dual_clip_share": terms["dual_clip_tokens"] / tokens,
    }


def machine_metrics(phases: dict[str, float], tokens: float) -> Row:
    """Throughput and memory, which differ between machines and runs."""
    row: Row = {"memory/rss_gb": _resident_bytes() / 1e9, "memory/peak_gb": _peak_bytes() / 1e9}
    if phases.get("time/rollout"):
        row["time/tokens_per_second"] = tokens / phases["time/rollout"]
    if torch.cuda.is_available():
        row["memory/gpu_peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
    return row


def _resident_bytes() -> int:
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return _peak_bytes()
    return int(statm.read_text().split()[1]) * resource.getpagesize()


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _masked_mean(values_BT: Tensor, mask_BT: Tensor) -> float:
    return float(values_BT[mask_BT].mean()) if bool(mask_BT.any()) else 0.0


def _quantiles(values_N: Tensor, levels: Tensor) -> list[float]:
    """By sorting: torch.quantile refuses more than 16 million values."""
    ordered = values_N.sort().values
    if not len(ordered):
        return [0.0] * len(levels)
    return ordered[(levels * (len(ordered) - 1)).round().long()].tolist()
