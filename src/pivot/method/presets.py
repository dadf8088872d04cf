"""Every compared method as a composition of the same parts."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from pivot.method.advantage import GroupAdvantage
from pivot.method.calibration import Calibration
from pivot.method.method import ImageCorruption, Method
from pivot.method.pepo import PerceptionExploration
from pivot.method.pgpo import PerceptionGrounding
from pivot.method.policy_loss import PolicyLoss
from pivot.method.replay import Anchors, Replay
from pivot.method.terms import (
    DoubleEntropy,
    EntropyPenalty,
    OffPolicy,
    Perception,
    ReferenceKL,
    SupervisedTarget,
)
from pivot.method.variants import variants_of
from pivot.method.visual import VisualAllocation
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
    "Baselines": (GRPO, DAPO, PAPO, VPPO, PEPO, PGPO, CALIBRL, CALIBRL_VAA, CALIBRL_ORIGINAL),
    "PIVOT and its ablations": ABLATIONS,
    "Our variants of PIVOT": variants_of(PIVOT),
}

_known = {method.name: method for methods in _GROUPED.values() for method in methods}
_groups = {title: [method.name for method in methods] for title, methods in _GROUPED.items()}

PRESETS: Mapping[str, Method] = MappingProxyType(_known)
"""Name -> method, in the order in which the paper presents them; then our variants and registered methods."""
GROUPS: Mapping[str, list[str]] = MappingProxyType(_groups)
"""Kind -> names of its methods."""


def preset(name: str) -> Method:
    """The method of that name; a ValueError names the nearest known one."""
    if name in PRESETS:
        return PRESETS[name]
    near = difflib.get_close_matches(name, PRESETS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"method {name!r} is not known{hint} (known: {', '.join(PRESETS)})")


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
