"""The settings of a method as one flat list: which parts they add or remove, and what they change in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from pivot.method.advantage import GroupAdvantage
from pivot.method.calibration import Calibration
from pivot.method.noise import NoisyRollouts
from pivot.method.part import Part
from pivot.method.pepo import PerceptionExploration
from pivot.method.pgpo import PerceptionGrounding
from pivot.method.policy_loss import PolicyLoss, Surrogate
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
from pivot.method.variants import VariantAllocation
from pivot.method.visual import ImageCorruption, VisualAllocation
from pivot.method.vppo import TokenSelection

if TYPE_CHECKING:
    from pivot.method.method import Method


@dataclass(frozen=True)
class Switches(Part):
    """The settings that add a part to a method or remove it; every method has them."""

    dynamic_sampling: bool = True
    """Drop groups that are all right or all wrong and sample others (DAPO)."""
    policy_loss: Literal["clip", "cispo", "sapo"] = "clip"
    """Eq. 3's clipped ratio, CISPO's capped importance weight, or SAPO's soft gate."""
    utility: Literal["none", "local", "future"] = "none"
    """Visual utility: none, U = c (the ablation VAA_local), or Eq. 13."""
    token_weights: Literal["none", "pepo", "pgpo"] = "none"
    """Weigh the advantage of each token as PEPO or PGPO does."""
    replay: bool = False
    """Draw part of each batch from the experience buffer (Eq. 6)."""
    anchor_use: Literal["none", "calibrate", "off_policy", "sft"] = "none"
    """What an anchor is for: Eq. 9, a slot of its group (Off-PG), or a supervised target (Off-SFT)."""
    flat_groups: Literal["none", "by_advantage", "by_score"] = "none"
    """Put stored groups in the place of those with equal rewards: drawn by |A| (VL-Rethinker) or by score (TRL)."""


TERMS = "terms"
"""The slot that holds any number of parts; all others hold one or none."""
SLOTS = ("policy_loss", "advantage", "visual", "noise", "replay", "anchors", "stored", "corruption")
"""Those others, in the order of a step."""


@dataclass(frozen=True)
class Option:
    """A part of this repository that settings add to a method or remove from it."""

    kind: type[Part]
    slot: str
    """The method's field that holds it."""
    switches: tuple[str, ...]
    """The settings that decide whether the method has it: it has, if one of them is not at its value in `OFF`."""
    choice: str | None = None
    """The value of the one switch that means this part, where each value means another."""

    def is_on(self, values: Mapping[str, Any]) -> bool:
        if self.choice is not None:
            return values[self.switches[0]] == self.choice
        return any(values[name] != OFF[name] for name in self.switches)


OPTIONS = (
    Option(PolicyLoss, "policy_loss", ("policy_loss",), "clip"),
    Option(CappedWeight, "policy_loss", ("policy_loss",), "cispo"),
    Option(SoftGate, "policy_loss", ("policy_loss",), "sapo"),
    Option(VisualAllocation, "visual", ("utility",)),
    Option(TokenSelection, "visual", ("token_keep_share", "shaping_floor")),
    Option(PerceptionExploration, "visual", ("token_weights",), "pepo"),
    Option(PerceptionGrounding, "visual", ("token_weights",), "pgpo"),
    Option(NoisyRollouts, "noise", ("noise_share",)),
    Option(Replay, "replay", ("replay",)),
    Option(StoredGroups, "stored", ("flat_groups",)),
    Option(ReferenceKL, TERMS, ("reference_kl_coef",)),
    Option(EntropyPenalty, TERMS, ("entropy_coef",)),
    Option(Perception, TERMS, ("perception_coef",)),
    Option(DoubleEntropy, TERMS, ("clean_entropy_coef", "corrupted_entropy_coef")),
    Option(Calibration, TERMS, ("anchor_use",), "calibrate"),
    Option(OffPolicy, TERMS, ("anchor_use",), "off_policy"),
    Option(SupervisedTarget, TERMS, ("anchor_use",), "sft"),
)
"""Every part that can be added. A sum of floats depends on its order: terms are added up in this one."""

OFF: Mapping[str, Any] = {
    **{field.name: field.default for field in fields(Switches)},
    **{name: 0.0 for option in OPTIONS for name in option.switches if name.endswith("_coef")},
    "token_keep_share": 1.0,
    "shaping_floor": None,
    "noise_share": 0.0,
}
"""The switches where no optional part is on. Every method has them as settings."""

KNOWN_PARTS: tuple[type[Part], ...] = (
    PolicyLoss,
    CappedWeight,
    SoftGate,
    GroupAdvantage,
    VariantAllocation,
    TokenSelection,
    NoisyRollouts,
    PerceptionExploration,
    PerceptionGrounding,
    Replay,
    Anchors,
    StoredGroups,
    ImageCorruption,
    *(option.kind for option in OPTIONS if option.slot == TERMS),
)
"""Every part of this repository, as help texts list them; `VariantAllocation` has `VisualAllocation`'s fields too."""

ANCHOR_TENSORS = ("anchor_logprob_B", "anchor_logprobs_BT", "off_policy_B", "target_B")
"""Tensors of a batch that exist where groups have anchors."""

_VARIANTS = {f.name: f.default for f in fields(VariantAllocation) if f not in fields(VisualAllocation)}
"""What `VariantAllocation` has besides."""


def switch_of(part: type[Part]) -> str:
    """The setting that adds this part to a method."""
    if part is Anchors:
        return "anchor_use"
    return next(option.switches[0] for option in OPTIONS if issubclass(part, option.kind))


def all_settings(method: Method) -> dict[str, Any]:
    """Every known setting; those of parts that the method lacks at the values that mean off."""
    values = {**{f.name: _default(f) for part in KNOWN_PARTS for f in fields(part)}, **OFF}
    values |= {"dynamic_sampling": method.dynamic_sampling, "replay": method.replay is not None}
    parts = list(method.parts())
    for option in OPTIONS:
        if option.choice is not None and any(isinstance(part, option.kind) for part in parts):
            values[option.switches[0]] = option.choice
    for part in parts:
        values |= {field.name: getattr(part, field.name) for field in fields(part)}
    return values


def own_names(parts: Iterable[Part]) -> set[str]:
    """The settings of a method with these parts: their fields, and the switches."""
    parts = list(parts)
    variants = _VARIANTS if any(type(part) is VisualAllocation for part in parts) else ()
    return {field.name for part in parts for field in fields(part)} | OFF.keys() | set(variants)


def switched(method: Method, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The method's fields with the parts that the switches among the changes ask for, mostly at their defaults.

    Raises:
        ValueError: a switch has no such value, or its part has no room; the sentence starts with its name.
    """
    values = {**all_settings(method), **changes}
    Switches(**{field.name: values[field.name] for field in fields(Switches)})  # checks them
    found: dict[str, Any] = {slot: getattr(method, slot) for slot in SLOTS}
    terms: list[Part] = list(method.terms)
    options = [option for option in OPTIONS if not changes.keys().isdisjoint(option.switches)]
    for option in options:
        if not option.is_on(values):
            terms = [term for term in terms if not isinstance(term, option.kind)]
            if isinstance(found.get(option.slot), option.kind):
                found[option.slot] = None
    for option in options:
        if not option.is_on(values):
            continue
        if option.slot != TERMS:
            found[option.slot] = _filled(option, found[option.slot], values, getattr(method, option.slot))
        elif not any(isinstance(term, option.kind) for term in terms):
            terms.append(_made(option, values))
    if "anchor_use" in changes:
        anchored = any(name in term.needs() for term in terms for name in ANCHOR_TENSORS)
        found["anchors"] = (method.anchors or Anchors()) if anchored else None
    if type(found["visual"]) is VisualAllocation and any(values[n] != v for n, v in _VARIANTS.items()):
        found["visual"] = VariantAllocation(**vars(found["visual"]))
    return {**found, TERMS: tuple(sorted(terms, key=_place)), "dynamic_sampling": values["dynamic_sampling"]}


def _filled(option: Option, present: Part | None, values: Mapping[str, Any], before: Part | None) -> Part:
    """What a slot with room for one part holds now."""
    if isinstance(present, option.kind):
        return present
    if isinstance(before, Surrogate):  # there is always one; the ratio and the mean stay
        return option.kind(**{field.name: getattr(before, field.name) for field in fields(Surrogate)})
    if present is not None:
        name = next(n for n in option.switches if values[n] != OFF[n])
        raise ValueError(
            f"{name} cannot be {values[name]!r}: the method has another {option.slot} part already"
        )
    return _made(option, values)


def _made(option: Option, values: Mapping[str, Any]) -> Part:
    """The part with its switches as they are set and the defaults of its other fields."""
    own = {field.name for field in fields(option.kind)}
    return option.kind(**{name: values[name] for name in option.switches if name in own})


def changed(parts: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A method's fields, from `switched`, with the changes that are fields of their parts."""

    def updated(part: Any) -> Any:
        own = {f.name: changes[f.name] for f in fields(part) if f.name in changes}
        return replace(part, **own) if own else part

    slots = {slot: None if parts[slot] is None else updated(parts[slot]) for slot in SLOTS}
    return {**parts, **slots, TERMS: tuple(map(updated, parts[TERMS]))}


def _place(term: Part) -> int:
    places = [i for i, option in enumerate(OPTIONS) if isinstance(term, option.kind)]
    return places[0] if places else len(OPTIONS)


def _default(field: Field[Any]) -> Any:
    assert field.default is not MISSING, f"{field.name} is a setting and needs a default"
    return field.default
