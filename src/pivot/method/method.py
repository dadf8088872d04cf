"""A method is composed of parts, and its settings are the fields of its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pivot.method import settings
from pivot.method.advantage import GroupAdvantage
from pivot.method.calibration import Calibration
from pivot.method.noise import NoisyRollouts
from pivot.method.part import LossTerm, Part
from pivot.method.policy_loss import PolicyLoss, Surrogate
from pivot.method.replay import Anchors, Replay, StoredGroups
from pivot.method.terms import EntropyPenalty
from pivot.method.visual import ImageCorruption, VisualPart


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
    corruption: ImageCorruption = ImageCorruption()  # noqa: RUF009 - frozen
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
            raise ValueError(
                f"anchor_use {self.settings()['anchor_use']!r} with anchor_source 'buffer' needs replay true"
            )

    @property
    def spec(self) -> str:
        """What `--method` takes: the name, or where it is imported from."""
        return self.source or self.name

    def parts(self) -> Iterator[Part]:
        """All parts, in the order of the paper."""
        yield from (part for slot in settings.SLOTS if (part := getattr(self, slot)) is not None)
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
        return any(self.needs(name) for name in settings.ANCHOR_TENSORS)

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

    def settings(self) -> dict[str, Any]:
        """Every known setting, flat; those of parts that the method lacks at the values that mean off."""
        return settings.all_settings(self)

    def own_settings(self) -> dict[str, Any]:
        """The settings that can be changed: the fields of its parts, and the switches that add or remove parts."""
        names = settings.own_names(self.parts())
        return {name: value for name, value in self.settings().items() if name in names}

    def with_settings(self, **changes: Any) -> Method:
        """The method with these settings.

        Raises:
            UnknownSetting: one belongs to a part that the method lacks.
            ValueError: a value is not allowed; the sentence starts with the setting's name.
        """
        parts = settings.switched(self, changes)
        held = [parts[slot] for slot in settings.SLOTS if parts[slot] is not None]
        known = settings.own_names([*held, *parts[settings.TERMS]])
        for name in changes:
            if name not in known:
                raise UnknownSetting(self, name)
        return replace(self, **settings.changed(parts, changes))

    def restored(self, stored: Mapping[str, Any]) -> Method:
        """The method with all settings of a stored one; those of parts that it lacks are ignored."""
        return replace(self, **settings.changed(settings.switched(self, stored), stored))


class UnknownSetting(ValueError):
    """A setting of a part that the method lacks."""

    def __init__(self, method: Method, name: str) -> None:
        self.method, self.name = method, name
        super().__init__(f"{name} is not a setting of method {method.name!r}")
