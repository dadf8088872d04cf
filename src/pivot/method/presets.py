"""Every compared method as a composition of the same parts."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from pivot.method.advantage import GroupAdvantage
from pivot.method.calibration import Calibration
from pivot.method.method import Method
from pivot.method.noise import NoisyRollouts
from pivot.method.pepo import PerceptionExploration
from pivot.method.pgpo import PerceptionGrounding
from pivot.method.policy_loss import PolicyLoss
from pivot.method.replay import Anchors, Replay, StoredGroups
from pivot.method.surrogates import CappedWeight, SoftGate
from pivot.method.terms import (
    DoubleEntropy,
    EntropyPenalty,
    OffPolicy,
    Perception,
    ReferenceKL,
    SupervisedTarget,
)
from pivot.method.variants import variants_of
from pivot.method.visual import ImageCorruption, VisualAllocation
from pivot.method.vppo import TokenSelection

DAPO = Method("dapo", "clip-higher, token mean, dynamic sampling; the base of all that follow")
GRPO = Method(
    "grpo",
    "symmetric clip, sequence mean, KL to the reference model, no filtering",
    policy_loss=PolicyLoss(clip_high=0.2, aggregation="sequence"),
    terms=(ReferenceKL(), EntropyPenalty()),
    dynamic_sampling=False,
)
PAPO = Method(
    "papo",
    "DAPO + maximise the divergence from the corrupted image + double entropy (PAPO_D)",
    terms=(EntropyPenalty(), Perception(), DoubleEntropy()),
    corruption=ImageCorruption(corrupt_raw_image=True),
)
VPPO = Method(
    "vppo",
    "DAPO on the 40% most image-dependent tokens, advantage shaped by the response's dependency",
    visual=TokenSelection(),
    corruption=ImageCorruption(corrupt_probability=0.5),
)
PEPO = replace(
    DAPO,
    name="pepo",
    summary="DAPO, tokens weighed by their similarity to the image and their entropy (PEPO_D)",
    visual=PerceptionExploration(),
)
PGPO = Method(
    "pgpo",
    "DAPO, tokens weighed by how much hiding the image changes them; no entropy penalty",
    visual=PerceptionGrounding(),
    terms=(),
)
CALIBRL = Method(
    "calibrl",
    "DAPO + a leaky guide towards expert demonstrations from a file",
    anchors=Anchors(anchor_source="expert"),
    terms=(
        EntropyPenalty(),
        Calibration(anchor_coef=0.1, calibration="position", calibration_shape="leaky_relu"),
    ),
)
CALIBRL_ORIGINAL = Method(
    "calibrl-original",
    "CalibRL as its own script runs it: symmetric clip, no division by std, no filtering, no entropy term",
    policy_loss=PolicyLoss(clip_high=0.2),
    advantage=GroupAdvantage(normalise_std=False),
    anchors=Anchors(anchor_source="expert"),
    terms=(
        Calibration(
            anchor_coef=0.1,
            calibration="position_zero",
            calibration_shape="leaky_relu",
            calibration_tokens="all",
        ),
    ),
    dynamic_sampling=False,
)
PPO_CLIP = PolicyLoss(clip_high=0.2, dual_clip=None)
"""PPO's clip. The methods below follow their own papers: no entropy penalty, and a filter only where they have one."""
GSPO = Method(
    "gspo",
    "one length-normalised ratio per response, clipped narrowly (arXiv 2507.18071)",
    policy_loss=PolicyLoss(
        clip_low=3e-4, clip_high=4e-4, dual_clip=None, ratio="sequence", aggregation="sequence"
    ),
    terms=(),
    dynamic_sampling=False,
)
DR_GRPO = Method(
    "dr-grpo",
    "GRPO without its biases: no division by std, a constant normaliser (arXiv 2503.20783)",
    policy_loss=replace(PPO_CLIP, aggregation="constant"),
    advantage=GroupAdvantage(normalise_std=False),
    terms=(),
    dynamic_sampling=False,
)
CISPO = Method(
    "cispo",
    "log-likelihood weighted by a capped importance weight, so that no token is clipped away (arXiv 2506.13585)",
    policy_loss=CappedWeight(),
    terms=(),
)
SAPO = Method(
    "sapo",
    "a sigmoid of the ratio in place of the clip, steeper for negative advantages (arXiv 2511.20347)",
    policy_loss=SoftGate(aggregation="sequence"),
    terms=(),
    dynamic_sampling=False,
)
RLOO = Method(
    "rloo",
    "each reward minus the mean of its group's other rewards (arXiv 2402.14740)",
    policy_loss=replace(PPO_CLIP, aggregation="constant"),
    advantage=GroupAdvantage(normalise_std=False, baseline="leave_one_out"),
    terms=(),
    dynamic_sampling=False,
)
REINFORCE_PP = Method(
    "reinforce-pp",
    "REINFORCE++: rewards normalised over the whole batch (arXiv 2501.03262)",
    policy_loss=PPO_CLIP,
    advantage=GroupAdvantage(baseline="batch", std_over="batch"),
    terms=(),
    dynamic_sampling=False,
)
NOISY_ROLLOUT = Method(
    "noisy-rollout",
    "GRPO, half of each group sampled under a noisy image that clears up (arXiv 2504.13055)",
    policy_loss=PPO_CLIP,
    terms=(),
    dynamic_sampling=False,
    noise=NoisyRollouts(),
)
EXGRPO = Method(
    "exgrpo",
    "Dr.GRPO; half-solved prompts return with their lowest-entropy success in a slot (arXiv 2510.02245)",
    policy_loss=DR_GRPO.policy_loss,
    advantage=DR_GRPO.advantage,
    replay=Replay(solved_threshold=0.35, warmup_share=1.0, bucket_sigma=0.125),
    anchors=Anchors(anchor_choice="entropy"),
    terms=(OffPolicy(),),
    dynamic_sampling=False,
)
SSR = Method(
    "ssr",
    "GRPO, groups of equal rewards replaced by stored ones, drawn by |A| (VL-Rethinker, arXiv 2504.08837)",
    policy_loss=replace(PPO_CLIP, aggregation="sequence"),
    terms=(),
    dynamic_sampling=False,
    stored=StoredGroups(),
)
GRPO_REPLAY = replace(
    SSR,
    name="grpo-replay",
    summary="GRPO, groups of equal rewards replaced by stored ones of high score (TRL's experimental trainer)",
    stored=StoredGroups(flat_groups="by_score"),
)

VAA = replace(
    DAPO, name="vaa", summary="DAPO + vision-guided advantage allocation", visual=VisualAllocation()
)
SER = Method(
    "ser",
    "DAPO + self-calibrated experience replay",
    replay=Replay(),
    anchors=Anchors(),
    terms=(EntropyPenalty(), Calibration()),
)
PIVOT = replace(
    SER, name="pivot", summary="DAPO + experience replay + advantage allocation", visual=VisualAllocation()
)

CALIBRL_VAA = replace(
    CALIBRL,
    name="calibrl-vaa",
    summary="CalibRL + vision-guided advantage allocation",
    visual=VisualAllocation(),
)
ABLATIONS = (
    replace(
        PIVOT,
        name="off-pg-vaa",
        summary="PIVOT, experience by policy gradient",
        terms=(EntropyPenalty(), OffPolicy()),
    ),
    replace(
        PIVOT,
        name="off-sft-vaa",
        summary="PIVOT, experience as supervised target",
        terms=(EntropyPenalty(), SupervisedTarget()),
    ),
    SER,
    VAA,
    replace(
        PIVOT,
        name="ser-vaa-local",
        summary="PIVOT with local support alone: U = c",
        visual=VisualAllocation(utility="local"),
    ),
    PIVOT,
    replace(
        PIVOT,
        name="pivot-grpo",
        summary="GRPO + experience replay + allocation",
        policy_loss=GRPO.policy_loss,
        terms=(*GRPO.terms, Calibration()),
        dynamic_sampling=False,
    ),
)

_GROUPED = {
    "Baselines of the paper": (GRPO, DAPO, PAPO, VPPO, CALIBRL, CALIBRL_VAA, CALIBRL_ORIGINAL),
    "PIVOT and its ablations": ABLATIONS,
    "Our variants of PIVOT": variants_of(PIVOT),
    "Other losses and advantages": (GSPO, DR_GRPO, CISPO, SAPO, RLOO, REINFORCE_PP),
    "Other token weights": (PEPO, PGPO),
    "Other rollouts and replay": (NOISY_ROLLOUT, EXGRPO, SSR, GRPO_REPLAY),
}

_known = {method.name: method for methods in _GROUPED.values() for method in methods}
_groups = {title: [method.name for method in methods] for title, methods in _GROUPED.items()}

PRESETS: Mapping[str, Method] = MappingProxyType(_known)
"""Name -> method, in the order in which the paper presents them; then our variants, others and registered methods."""
GROUPS: Mapping[str, list[str]] = MappingProxyType(_groups)
"""Kind -> names of its methods."""


MODULES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "vaa": {"utility": "future"},
        "ser": {"replay": True, "anchor_use": "calibrate"},
        "pivot": {"utility": "future", "replay": True, "anchor_use": "calibrate"},
        "noisy": {"noise_share": 0.5},
        "ssr": {"flat_groups": "by_advantage"},
    }
)
"""What can be added to any method, `METHOD+MODULE` -> its settings."""
MODULE_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "vaa": "vision-guided advantage allocation",
        "ser": "self-calibrated experience replay",
        "pivot": "experience replay and advantage allocation",
        "noisy": "half of each group sampled under a noisy image",
        "ssr": "stored groups in the place of flat ones",
    }
)
"""Module -> what it adds, in words."""


def preset(name: str) -> Method:
    """The method of that name, or one with modules added to it; a ValueError names the nearest known one.

    Example:
        preset("gspo+pivot")  # GSPO's loss, PIVOT's replay and allocation
    """
    if name in PRESETS:
        return PRESETS[name]
    base, *modules = name.split("+")
    if modules and base in PRESETS:
        return _with_modules(PRESETS[base], modules)
    near = difflib.get_close_matches(name, PRESETS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"method {name!r} is not known{hint} (known: {', '.join(PRESETS)})")


def _with_modules(method: Method, modules: Sequence[str]) -> Method:
    for module in modules:
        if module not in MODULES:
            raise ValueError(f"{module!r} is not a module (known: {', '.join(MODULES)})")
        before = method.settings()
        if all(before[name] == value for name, value in MODULES[module].items()):
            raise ValueError(f"{method.name} has {module!r} already")
        method = replace(
            method.with_settings(**MODULES[module]),
            name=f"{method.name}+{module}",
            summary=f"{method.summary}; with {MODULE_NAMES[module]}",
        )
    return method


def register_method(method: Method) -> None:
    """Make a method available by its name in this process, for `pivot.train` and `preset`.

    Example:
        pivot.register_method(Method("mine", "DAPO with a term of my own", terms=(EntropyPenalty(), MyTerm())))
    """
    if _known.get(method.name, method) != method:
        raise ValueError(f"there is already another method of the name {method.name!r}")
    if method.name not in _known:
        _groups.setdefault("Registered", []).append(method.name)
    _known[method.name] = method
