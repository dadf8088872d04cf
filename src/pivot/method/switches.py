"""What a method is made of: every switch that tells the compared methods apart."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Literal, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Method:
    """A method as a choice of parts. The defaults are DAPO with every part of PIVOT switched off.

    Example:
        replace(preset("pivot"), beta=0.3)
    """

    name: str
    """What `--method` calls it."""
    summary: str
    """One line for `pivot methods`."""

    clip_low: float = 0.2
    """epsilon_l of Eq. 3: the ratio is clipped at 1 - clip_low; the value is DAPO's, not in the paper."""
    clip_high: float = 0.28
    """epsilon_h of Eq. 3: the ratio is clipped at 1 + clip_high; the value is DAPO's, not in the paper."""
    dual_clip: float | None = 3.0
    """Bound on a negative sample's loss, in units of -A; null for none. Not in the paper."""
    aggregation: Literal["token", "sequence"] = "token"
    """Mean over all tokens (Eq. 3), or over each response and then over responses (GRPO)."""
    dynamic_sampling: bool = True
    """Drop groups that are all right or all wrong and sample others (DAPO)."""
    normalise_std: bool = True
    """Divide accuracy and format advantages by their group's standard deviation (Eq. 2); CalibRL's script: false."""
    reference_kl_coef: float = 0.0
    """Weight of the k3 divergence from the reference model (GRPO: 0.01)."""
    format_coef: float = 0.1
    """Weight of the group-decoupled format advantage (App. C.2)."""
    format_position: Literal["after", "before"] = "after"
    """Add the format advantage after or before modulation and sign protection. Not in the paper."""
    entropy_coef: float = 0.06
    """Weight of the entropy penalty of all models (Sec. 5.1)."""
    entropy_form: Literal["nll", "exact"] = "nll"
    """-log pi of sampled tokens as in VPPO's code, or the full-vocabulary entropy. Not in the paper."""

    utility: Literal["none", "local", "future"] = "none"
    """Visual utility: none, U = c (the ablation VAA_local), or Eq. 13."""
    beta: float = 0.1
    """Strength of the advantage modulation (Eq. 14). The paper prints no value; a validation split chose ours."""
    modulation: Literal["add", "weigh"] = "add"
    """Eq. 14's A + beta |A| U, or A + beta A |U|, which adds nothing that is not about reward. Ours; add in PIVOT."""
    adapt_beta: bool = False
    """Multiply beta by how well c tells the right responses of a prompt from its wrong ones. Ours, off in PIVOT."""
    utility_bound: float | None = None
    """Clip U to [-bound, bound] before Eq. 14; null for no bound. Ours, off in PIVOT."""
    soften_wrong: bool = True
    """Let visual support soften the penalty of a wrong response, as Eq. 14 does. Ours; true in PIVOT."""
    support_form: Literal["relative", "absolute"] = "relative"
    """c as (p - q) / p, Eq. 10, or as p - q, which is small for unlikely tokens. Ours; relative in PIVOT."""
    support_floor: float | None = -5.0
    """Lower bound of c (Eq. 10) before it is used; null is the literal equation. Not in the paper."""
    future_window: int = 32
    """W of Eq. 11 (App. C.2)."""
    future_discount: float = 0.8
    """gamma of Eq. 11 (App. C.2)."""
    future_coef: float = 0.5
    """lambda of Eq. 13 (App. C.2)."""

    replay: bool = False
    """Draw a part of each batch from the experience buffer (Eq. 6)."""
    replay_share: float = 0.5
    """N_off / N once replay is active (App. C.2)."""
    anchor_use: Literal["none", "calibrate", "off_policy", "sft"] = "none"
    """What an anchor is for: Eq. 9, a slot of its group (Off-PG), or a supervised target (Off-SFT)."""
    anchor_source: Literal["buffer", "expert"] = "buffer"
    """Own experience (Eq. 7), or demonstrations from a file (CalibRL)."""
    anchor_coef: float = 0.3
    """lambda_exp of Eq. 16, for calibration and Off-SFT. The paper prints no value; a validation split chose ours."""
    calibration: Literal["anchor_mean", "position", "position_zero", "seq_mean", "seq_sum"] = "anchor_mean"
    """Eq. 8 as a token-level gap; seq_sum is the literal equation, position_zero CalibRL's code. Not in the paper."""
    calibration_shape: Literal["softplus", "leaky_relu"] = "softplus"
    """The margin function of Eq. 9; leaky_relu is CalibRL's."""
    leaky_slope: float = 0.5
    """Slope of CalibRL's leaky_relu below 0."""
    calibration_tokens: Literal["replayed", "all"] = "replayed"
    """Tokens that normalise the calibration loss. Not in the paper."""
    anchor_keep: float = 0.5
    """alpha: the share of lowest-entropy candidates among which the anchor is chosen (Sec. 4.1)."""
    anchor_scores: Literal["current", "collected"] = "current"
    """Score candidates under today's weights (Sec. 4.1), or keep the scores of their collection."""
    solved_threshold: float = 0.45
    """Replay starts once the share of correct responses exceeds this (App. C.2)."""
    warmup_share: float = 0.2
    """Replay starts after this share of the steps at the latest; the value is not in the paper."""
    responses_per_prompt: int | None = None
    """Most responses kept a prompt; null for the group size G. Not in the paper."""
    off_policy_shaping: float = 0.1
    """gamma of Off-PG's shaped ratio w / (w + gamma). Not in the paper."""

    perception_coef: float = 0.0
    """Weight of PAPO's perception term, a k3 divergence that is maximised (PAPO_D: 0.01)."""
    perception_clip: float = 10.0
    """Upper bound of the k3 of a token in PAPO and VPPO."""
    clean_entropy_coef: float = 0.0
    """Weight of the clean half of PAPO's double entropy (0.03)."""
    corrupted_entropy_coef: float = 0.0
    """Weight of the corrupted half of PAPO's double entropy (0.03); a constant without gradient."""

    token_keep_share: float = 1.0
    """Share of each response's tokens that stay in the policy loss, by visual dependency (VPPO: 0.4)."""
    shaping_floor: float | None = None
    """Smallest factor of VPPO's advantage shaping (0.9); null for no shaping."""

    corrupt_raw_image: bool = False
    """Corrupt the original image, as PAPO does, instead of the ViT's own patches (App. D.1)."""
    corrupt_probability: float = 0.6
    """Share of patches that the `patch` intervention sets to black (App. C.2; VPPO's code: 0.5)."""

    def __post_init__(self) -> None:
        for name, choices in _choices().items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ValueError(f"{name} must lie in [{low:g}, {high:g}], got {value!r}")
        if self.dual_clip is not None and self.dual_clip <= 1.0:
            raise ValueError(f"dual_clip must be above 1 or null, got {self.dual_clip!r}")
        if self.needs_anchors and self.anchor_source == "buffer" and not self.replay:
            raise ValueError(f"anchor_use {self.anchor_use!r} with anchor_source 'buffer' needs replay true")

    @property
    def needs_corrupted(self) -> bool:
        """Whether the policy must also be scored under the corrupted image for its loss or advantages."""
        papo = self.perception_coef > 0 or self.clean_entropy_coef > 0 or self.corrupted_entropy_coef > 0
        return self.utility != "none" or papo or self.needs_token_dependency

    @property
    def needs_token_dependency(self) -> bool:
        """Whether VPPO's token mask or shaping is on."""
        return self.token_keep_share < 1.0 or self.shaping_floor is not None

    @property
    def needs_reference(self) -> bool:
        """Whether a frozen reference model must score the responses."""
        return self.reference_kl_coef > 0

    @property
    def needs_anchors(self) -> bool:
        """Whether replayed prompts come with an anchor."""
        return self.anchor_use != "none"


_ANY = float("inf")
_RANGES: dict[str, tuple[float, float]] = {
    "clip_low": (0, 1),
    "clip_high": (0, _ANY),
    "reference_kl_coef": (0, _ANY),
    "format_coef": (0, _ANY),
    "entropy_coef": (-_ANY, _ANY),
    "beta": (0, _ANY),
    "utility_bound": (0, _ANY),
    "support_floor": (-_ANY, 0),
    "future_window": (1, _ANY),
    "future_discount": (0, 1),
    "future_coef": (-_ANY, _ANY),
    "replay_share": (0, 1),
    "anchor_coef": (0, _ANY),
    "leaky_slope": (0, 1),
    "anchor_keep": (1e-9, 1),
    "solved_threshold": (0, 1),
    "warmup_share": (0, 1),
    "responses_per_prompt": (1, _ANY),
    "off_policy_shaping": (1e-9, _ANY),
    "perception_coef": (0, _ANY),
    "perception_clip": (0, _ANY),
    "clean_entropy_coef": (0, _ANY),
    "corrupted_entropy_coef": (0, _ANY),
    "token_keep_share": (0, 1),
    "shaping_floor": (0, 1),
    "corrupt_probability": (0, 1),
}


@cache
def _choices() -> dict[str, tuple[str, ...]]:
    """Field -> its allowed words, from the annotations."""
    hints = get_type_hints(Method)
    return {f.name: get_args(hints[f.name]) for f in fields(Method) if get_origin(hints[f.name]) is Literal}
