"""A method is composed of parts, and its settings are the fields of its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, replace
from typing import Any, ClassVar, Literal

from pivot.method.advantage import GroupAdvantage
from pivot.method.calibration import Calibration
from pivot.method.noise import NoisyRollouts
from pivot.method.part import Bounds, LossTerm, Part
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
from pivot.method.visual import VisualAllocation, VisualPart
from pivot.method.vppo import TokenSelection


@dataclass(frozen=True)
class ImageCorruption(Part):
    """How the corrupted image of Eq. 4 and 10 is made."""

    bounds: ClassVar[Bounds] = {"corrupt_probability": (0, 1)}

    corrupt_raw_image: bool = False
    """Corrupt the original image, as PAPO does, instead of the ViT's own patches (App. D.1)."""
    corrupt_probability: float = 0.6
    """Share of patches that the `patch` intervention sets to black (App. C.2; VPPO's code: 0.5)."""


@dataclass(frozen=True)
class Method:
    """What is compared: a policy loss, an advantage rule, and the parts that a method adds. The defaults are DAPO.

    Example:
        preset("pivot").with_settings(beta=0.3)
        Method("mine", "DAPO with a term of my own", terms=(EntropyPenalty(), MyTerm(coef=0.1)))
    """

    name: str
    """What `--method` calls it."""
    summary: str
    """One line for `pivot methods`."""
    policy_loss: Surrogate = PolicyLoss()  # noqa: RUF009 - frozen
    """L_RLVR (Eq. 3)."""
    advantage: GroupAdvantage = GroupAdvantage()  # noqa: RUF009 - frozen
    """From rewards to advantages (Eq. 2)."""
    visual: VisualPart | None = None
    """What the image changes about advantages: VAA (Eq. 10-15), VPPO, PEPO or PGPO."""
    replay: Replay | None = None
    """Prompts from the experience buffer (Eq. 6)."""
    anchors: Anchors | None = None
    """y_exp (Eq. 7), for the terms that read it."""
    terms: tuple[LossTerm, ...] = (EntropyPenalty(),)
    """All other summands of the loss (Eq. 9, 16)."""
    dynamic_sampling: bool = True
    """Drop groups that are all right or all wrong and sample others (DAPO)."""
    corruption: ImageCorruption = ImageCorruption()
    """The corrupted image."""
    noise: NoisyRollouts | None = None
    """Part of each group sampled under a noisy image (NoisyRollout)."""
    stored: StoredGroups | None = None
    """Stored groups in the place of those with equal rewards (SSR, TRL)."""
    source: str | None = None
    """`package.module:name` of a method from outside, by which a run's config.json finds it again."""

    def __post_init__(self) -> None:
        if self.needs_anchors and self.anchors is None:
            raise ValueError(f"method {self.name!r} has a term that reads anchors, but no Anchors part")
        if self.needs_anchors and self.replay is None and not self.has_experts:
            raise ValueError(f"anchor_use {self._anchor_use!r} with anchor_source 'buffer' needs replay true")

    @property
    def spec(self) -> str:
        """What `--method` takes: the name, or where it is imported from."""
        return self.source or self.name

    def parts(self) -> Iterator[Part]:
        """All parts, in the order of the paper."""
        yield from (part for slot in SLOTS if (part := getattr(self, slot)) is not None)
        yield from self.terms

    def needs(self, name: str) -> bool:
        """Whether any part reads this optional tensor of a `Batch`."""
        return any(name in part.needs() for part in self.parts())

    @property
    def needs_corrupted(self) -> bool:
        """Whether the responses are also scored under the corrupted image."""
        return self.needs("corrupted_logprobs_BT")

    @property
    def hides_image(self) -> bool:
        """Whether the corrupted pass hides the image from attention."""
        return self.visual is not None and self.visual.hides_image

    @property
    def needs_similarity(self) -> bool:
        """Whether hidden states of responses are compared with those of the image."""
        return self.needs("similarity_BT")

    @property
    def needs_reference(self) -> bool:
        """Whether a frozen reference model scores the responses."""
        return self.needs("reference_logprobs_BT")

    @property
    def needs_entropy(self) -> bool:
        """Whether the forward pass with gradients also computes entropies."""
        return self.needs("new_entropy_BT")

    @property
    def needs_anchors(self) -> bool:
        """Whether groups come with an anchor."""
        return any(self.needs(name) for name in ANCHOR_TENSORS)

    @property
    def trains_on_experience(self) -> bool:
        """Whether the anchor takes a slot of its group (Off-PG)."""
        return self.needs("off_policy_B")

    @property
    def trains_on_targets(self) -> bool:
        """Whether the anchor is a row of its own in the update (Off-SFT)."""
        return self.needs("target_B")

    @property
    def has_experts(self) -> bool:
        """Whether anchors are demonstrations from a file (CalibRL)."""
        return self.anchors is not None and self.anchors.anchor_source == "expert"

    @property
    def sums_anchor(self) -> bool:
        """Whether the gap compares whole sequences (`calibration=seq_sum`)."""
        return any(isinstance(term, Calibration) and term.calibration == "seq_sum" for term in self.terms)

    @property
    def _anchor_use(self) -> str:
        used = [use for use, kind in ANCHOR_USES.items() for term in self.terms if isinstance(term, kind)]
        return used[0] if used else "none"

    def settings(self) -> dict[str, Any]:
        """Every known setting, flat; those of parts that the method lacks at the values that mean off."""
        values = off_settings() | {"dynamic_sampling": self.dynamic_sampling}
        values |= {"replay": self.replay is not None, "anchor_use": self._anchor_use}
        values["policy_loss"] = next(
            name for name, kind in SURROGATES.items() if isinstance(self.policy_loss, kind)
        )
        values["token_weights"] = next(
            (n for n, kind in TOKEN_WEIGHTS.items() if type(self.visual) is kind), "none"
        )
        for part in self.parts():
            values |= {field.name: getattr(part, field.name) for field in fields(part)}
        return values

    def own_settings(self) -> dict[str, Any]:
        """The settings that can be changed: the fields of its parts, and the switches that add or remove parts."""
        names = {field.name for part in self.parts() for field in fields(part)} | SWITCHES
        if type(self.visual) is VisualAllocation:
            names |= VARIANT_FIELDS
        return {name: value for name, value in self.settings().items() if name in names}

    def with_settings(self, **changes: Any) -> Method:
        """The method with these settings.

        Raises:
            UnknownSetting: one belongs to a part that the method lacks.
            ValueError: a value is not allowed; the sentence starts with the setting's name.
        """
        method = _switched(self, changes)
        known = method.own_settings()
        for name in changes:
            if name not in known:
                raise UnknownSetting(self, name)
        return _changed(method, changes)

    def restored(self, settings: Mapping[str, Any]) -> Method:
        """The method with all settings of a stored one; those of parts that it lacks are ignored."""
        return _changed(_switched(self, settings), settings)


class UnknownSetting(ValueError):
    """A setting of a part that the method lacks."""

    def __init__(self, method: Method, name: str) -> None:
        self.method, self.name = method, name
        super().__init__(f"{name} is no setting of method {method.name!r}")


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


SLOTS = ("policy_loss", "advantage", "visual", "noise", "replay", "anchors", "stored", "corruption")
"""Fields of a method that hold one part or none, in the order of a step."""

SURROGATES: Mapping[str, type[Surrogate]] = {"clip": PolicyLoss, "cispo": CappedWeight, "sapo": SoftGate}
"""`policy_loss` -> its part."""

WEIGHTED_TERMS: Mapping[type[LossTerm], tuple[str, ...]] = {
    ReferenceKL: ("reference_kl_coef",),
    EntropyPenalty: ("entropy_coef",),
    Perception: ("perception_coef",),
    DoubleEntropy: ("clean_entropy_coef", "corrupted_entropy_coef"),
}
"""Terms that are part of a method where a weight is not 0 -> these weights."""

TOKEN_SELECTION_OFF: Mapping[str, Any] = {"token_keep_share": 1.0, "shaping_floor": None}
"""Values at which VPPO's part does nothing."""

TOKEN_WEIGHTS: Mapping[str, type[VisualPart]] = {"pepo": PerceptionExploration, "pgpo": PerceptionGrounding}
"""`token_weights` -> its visual part."""

ANCHOR_USES: Mapping[str, type[LossTerm]] = {
    "calibrate": Calibration,
    "off_policy": OffPolicy,
    "sft": SupervisedTarget,
}
"""`anchor_use` -> its term."""

ANCHOR_TENSORS = ("anchor_logprob_B", "anchor_logprobs_BT", "off_policy_B", "target_B")
"""Tensors of a batch that exist where groups have anchors."""

TERM_ORDER = (*WEIGHTED_TERMS, *ANCHOR_USES.values())
"""In which the terms are added up; a sum of floats depends on it."""

KNOWN_PARTS: tuple[type[Part], ...] = (
    *SURROGATES.values(),
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
    *TERM_ORDER,
)
"""Every part of this repository; `VariantAllocation` has the fields of `VisualAllocation` too."""

SWITCH_OF: Mapping[type[Part], str] = {
    **dict.fromkeys(SURROGATES.values(), "policy_loss"),
    VariantAllocation: "utility",
    TokenSelection: "token_keep_share",
    NoisyRollouts: "noise_share",
    **dict.fromkeys(TOKEN_WEIGHTS.values(), "token_weights"),
    Replay: "replay",
    Anchors: "anchor_use",
    StoredGroups: "flat_groups",
    **{kind: names[0] for kind, names in WEIGHTED_TERMS.items()},
    **dict.fromkeys(ANCHOR_USES.values(), "anchor_use"),
}
"""Part -> the setting that adds it to a method."""

WEIGHTS = tuple(name for names in WEIGHTED_TERMS.values() for name in names)
SWITCHES = {f.name for f in fields(Switches)} | {*TOKEN_SELECTION_OFF, *WEIGHTS, "noise_share"}
"""The settings that every method has, since they add parts."""
VARIANT_FIELDS = {f.name for f in fields(VariantAllocation)} - {f.name for f in fields(VisualAllocation)}


def off_settings() -> dict[str, Any]:
    """Every known setting where no optional part is on."""
    defaults = {f.name: _default(f) for part in (*KNOWN_PARTS, Switches) for f in fields(part)}
    return {**defaults, **TOKEN_SELECTION_OFF, **dict.fromkeys(WEIGHTS, 0.0), "noise_share": 0.0}


def _default(field: Field[Any]) -> Any:
    assert field.default is not MISSING, f"{field.name} is a setting and needs a default"
    return field.default


def _switched(method: Method, changes: Mapping[str, Any]) -> Method:
    """The parts that the switches among the changes ask for, with their defaults."""
    changed: dict[str, Any] = {"visual": _visual(method.visual, changes)}
    if "policy_loss" in changes:
        changed["policy_loss"] = _surrogate(method.policy_loss, changes["policy_loss"])
    if "noise_share" in changes:
        changed["noise"] = (method.noise or NoisyRollouts()) if changes["noise_share"] else None
    if "flat_groups" in changes:
        is_off = changes["flat_groups"] == "none"
        changed["stored"] = None if is_off else method.stored or StoredGroups()
    if "replay" in changes:
        changed["replay"] = (method.replay or Replay()) if changes["replay"] else None
    if "dynamic_sampling" in changes:
        changed["dynamic_sampling"] = changes["dynamic_sampling"]
    terms = _weighted_terms(method.terms, changes)
    if "anchor_use" in changes:
        terms = _anchor_terms(terms, changes["anchor_use"])
        anchored = any(name in term.needs() for term in terms for name in ANCHOR_TENSORS)
        changed["anchors"] = (method.anchors or Anchors()) if anchored else None
    # The source of anchors decides whether they need replay: it is set along with the parts.
    anchors = changed.get("anchors", method.anchors)
    if anchors is not None and "anchor_source" in changes:
        changed["anchors"] = replace(anchors, anchor_source=changes["anchor_source"])
    return replace(method, **changed, terms=tuple(sorted(terms, key=_place)))


def _surrogate(loss: Surrogate, name: str) -> Surrogate:
    """The loss of that name; the ratio and the mean stay."""
    if name not in SURROGATES:
        raise ValueError(f"policy_loss must be one of {', '.join(SURROGATES)}, got {name!r}")
    kind = SURROGATES[name]
    return (
        loss if isinstance(loss, kind) else kind(**{f.name: getattr(loss, f.name) for f in fields(Surrogate)})
    )


def _visual(visual: VisualPart | None, changes: Mapping[str, Any]) -> VisualPart | None:
    utility, weights = changes.get("utility"), changes.get("token_weights")
    if utility == "none" and isinstance(visual, VisualAllocation):
        visual = None
    if weights is not None and type(visual) in TOKEN_WEIGHTS.values() and not _weighs(visual, weights):
        visual = None
    given = {name: changes[name] for name in TOKEN_SELECTION_OFF if name in changes}
    if given and (visual is None or isinstance(visual, TokenSelection)):
        selection = replace(visual or TokenSelection(**TOKEN_SELECTION_OFF), **given)
        is_off = all(getattr(selection, name) == off for name, off in TOKEN_SELECTION_OFF.items())
        visual = None if is_off else selection
    for name, value in given.items():
        if value != TOKEN_SELECTION_OFF[name] and not isinstance(visual, TokenSelection):
            raise ValueError(f"{name} cannot be {value!r}: the method has another visual part already")
    if weights is not None and weights in TOKEN_WEIGHTS and not _weighs(visual, weights):
        if visual is not None:
            raise ValueError(
                f"token_weights cannot be {weights!r}: the method has another visual part already"
            )
        visual = TOKEN_WEIGHTS[weights]()
    if utility in (None, "none") or isinstance(visual, VisualAllocation):
        pass
    elif visual is not None:
        raise ValueError(f"utility cannot be {utility!r}: the method has another visual part already")
    else:
        visual = VisualAllocation()
    if type(visual) is VisualAllocation and any(
        f.name in changes and changes[f.name] != f.default
        for f in fields(VariantAllocation)
        if f.name in VARIANT_FIELDS
    ):
        visual = VariantAllocation(**vars(visual))
    return visual


def _weighs(visual: VisualPart | None, chosen: str | None) -> bool:
    return chosen is not None and type(visual) is TOKEN_WEIGHTS.get(chosen)


def _weighted_terms(terms: tuple[LossTerm, ...], changes: Mapping[str, Any]) -> tuple[LossTerm, ...]:
    for kind, names in WEIGHTED_TERMS.items():
        given = {name: changes[name] for name in names if name in changes}
        if not given:
            continue
        present = next((term for term in terms if isinstance(term, kind)), kind(**dict.fromkeys(names, 0.0)))
        weighted = replace(present, **given)
        terms = tuple(term for term in terms if not isinstance(term, kind))
        if any(getattr(weighted, name) != 0 for name in names):
            terms += (weighted,)
    return terms


def _anchor_terms(terms: tuple[LossTerm, ...], use: str) -> tuple[LossTerm, ...]:
    kinds = tuple(ANCHOR_USES.values())
    rest = tuple(term for term in terms if not isinstance(term, kinds))
    if use == "none":
        return rest
    if use not in ANCHOR_USES:
        raise ValueError(f"anchor_use must be one of none, {', '.join(ANCHOR_USES)}, got {use!r}")
    kind = ANCHOR_USES[use]
    return (*rest, next((term for term in terms if isinstance(term, kind)), kind()))


def _place(term: LossTerm) -> int:
    places = [i for i, kind in enumerate(TERM_ORDER) if isinstance(term, kind)]
    return places[0] if places else len(TERM_ORDER)


def _changed(method: Method, changes: Mapping[str, Any]) -> Method:
    """Every part with the changes that are fields of it."""

    def updated(part: Any) -> Any:
        own = {f.name: changes[f.name] for f in fields(part) if f.name in changes}
        return replace(part, **own) if own else part

    parts = {slot: getattr(method, slot) for slot in SLOTS}
    return replace(
        method,
        **{slot: None if part is None else updated(part) for slot, part in parts.items()},
        terms=tuple(updated(term) for term in method.terms),
    )
