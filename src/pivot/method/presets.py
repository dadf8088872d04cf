"""Every compared method as a choice of the same parts."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from pivot.method.switches import Method

_VAA: dict[str, Any] = {"utility": "future"}
_SER: dict[str, Any] = {"replay": True, "anchor_use": "calibrate"}

_DAPO = Method("dapo", "clip-higher, token mean, dynamic sampling; the base of all that follow")
_GRPO = replace(
    _DAPO,
    name="grpo",
    summary="symmetric clip, sequence mean, KL to the reference model, no filtering",
    clip_high=0.2,
    aggregation="sequence",
    dynamic_sampling=False,
    reference_kl_coef=0.01,
)
_PAPO = replace(
    _DAPO,
    name="papo",
    summary="DAPO + maximise the divergence from the corrupted image + double entropy (PAPO_D)",
    perception_coef=0.01,
    clean_entropy_coef=0.03,
    corrupted_entropy_coef=0.03,
    corrupt_raw_image=True,
)
_VPPO = replace(
    _DAPO,
    name="vppo",
    summary="DAPO on the 40% most image-dependent tokens, advantage shaped by the response's dependency",
    token_keep_share=0.4,
    shaping_floor=0.9,
)
_CALIBRL = replace(
    _DAPO,
    name="calibrl",
    summary="DAPO + a leaky guide towards expert demonstrations from a file",
    anchor_use="calibrate",
    anchor_source="expert",
    calibration="position",
    calibration_shape="leaky_relu",
    anchor_coef=0.1,
)
_VAA_ONLY = replace(_DAPO, name="vaa", summary="DAPO + vision-guided advantage allocation", **_VAA)
_SER_ONLY = replace(_DAPO, name="ser", summary="DAPO + self-calibrated experience replay", **_SER)
_PIVOT = replace(_SER_ONLY, name="pivot", summary="DAPO + experience replay + advantage allocation", **_VAA)

_ALL = (
    _GRPO,
    _DAPO,
    _PAPO,
    _VPPO,
    _CALIBRL,
    replace(_CALIBRL, name="calibrl-vaa", summary="CalibRL + vision-guided advantage allocation", **_VAA),
    replace(
        _PIVOT, name="off-pg-vaa", summary="PIVOT, experience by policy gradient", anchor_use="off_policy"
    ),
    replace(_PIVOT, name="off-sft-vaa", summary="PIVOT, experience as supervised target", anchor_use="sft"),
    _SER_ONLY,
    _VAA_ONLY,
    replace(_PIVOT, name="ser-vaa-local", summary="PIVOT with local support alone: U = c", utility="local"),
    _PIVOT,
    replace(_GRPO, name="pivot-grpo", summary="GRPO + experience replay + allocation", **_SER, **_VAA),
    replace(
        _PIVOT,
        name="pivot-bounded",
        summary="PIVOT, ours: U within [-1, 1], and it never softens a wrong response's penalty",
        utility_bound=1.0,
        soften_wrong=False,
    ),
    replace(
        _PIVOT,
        name="pivot-adaptive",
        summary="PIVOT, ours: beta follows how well c tells right responses from wrong ones",
        beta=1.0,
        adapt_beta=True,
    ),
    replace(
        _PIVOT,
        name="pivot-absolute",
        summary="PIVOT, ours: c = p - q, so that unlikely tokens weigh little",
        beta=1.0,
        support_form="absolute",
    ),
    replace(
        _PIVOT,
        name="pivot-weighted",
        summary="PIVOT, ours: c = p - q and A + beta A |U|, so that nothing is pushed but by its reward",
        beta=1.0,
        support_form="absolute",
        modulation="weigh",
    ),
)

PRESETS: Mapping[str, Method] = MappingProxyType({method.name: method for method in _ALL})
"""Name -> method, in the order in which the paper presents them; the last four are changes of ours to PIVOT."""


def preset(name: str) -> Method:
    """The method of that name; a ValueError names the nearest known one."""
    if name in PRESETS:
        return PRESETS[name]
    near = difflib.get_close_matches(name, PRESETS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"method {name!r} is not known{hint} (known: {', '.join(PRESETS)})")
