"""The methods are what the papers say, out of the same parts."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

import pivot.method
from pivot.method import (
    PRESETS,
    EntropyPenalty,
    Method,
    Perception,
    ReferenceKL,
    TokenSelection,
    UnknownSetting,
    VariantAllocation,
    VisualAllocation,
    preset,
)


def changed(name: str, base: str) -> dict[str, object]:
    """The settings in which a method differs from another."""
    one, other = preset(name).settings(), preset(base).settings()
    return {n: value for n, value in one.items() if value != other[n]}


def test_the_papers_thirteen_methods_calibrls_own_script_four_of_ours_and_twelve_of_others() -> None:
    assert set(PRESETS) == {
        "grpo", "dapo", "papo", "vppo", "calibrl", "calibrl-vaa", "calibrl-original", "off-pg-vaa", "off-sft-vaa",
        "ser", "vaa", "ser-vaa-local", "pivot", "pivot-grpo", "pivot-bounded", "pivot-adaptive", "pivot-absolute",
        "pivot-weighted", "gspo", "dr-grpo", "cispo", "sapo", "rloo", "reinforce-pp", "noisy-rollout", "exgrpo", "ssr",
        "grpo-replay", "pepo", "pgpo",
    }  # fmt: skip
    assert all(name == method.name and method.summary for name, method in PRESETS.items())


VAA = {"utility": "future"}
SER = {"replay": True, "anchor_use": "calibrate"}
PLAIN = {"dual_clip": None, "entropy_coef": 0.0, "dynamic_sampling": False}


@pytest.mark.parametrize(
    ("name", "base", "difference"),
    [
        ("grpo", "dapo", {"clip_high": 0.2, "aggregation": "sequence", "dynamic_sampling": False,
                          "reference_kl_coef": 0.01}),
        ("papo", "dapo", {"perception_coef": 0.01, "clean_entropy_coef": 0.03, "corrupted_entropy_coef": 0.03,
                          "corrupt_raw_image": True}),
        ("vppo", "dapo", {"token_keep_share": 0.4, "shaping_floor": 0.9, "corrupt_probability": 0.5}),
        ("pepo", "dapo", {"token_weights": "pepo"}),
        ("pgpo", "dapo", {"token_weights": "pgpo", "entropy_coef": 0.0}),
        ("calibrl", "dapo", {"anchor_use": "calibrate", "anchor_source": "expert", "calibration": "position",
                             "calibration_shape": "leaky_relu", "anchor_coef": 0.1}),
        ("calibrl-vaa", "calibrl", VAA),
        ("calibrl-original", "calibrl", {"clip_high": 0.2, "dynamic_sampling": False, "normalise_std": False,
                                         "entropy_coef": 0.0, "calibration": "position_zero",
                                         "calibration_tokens": "all"}),
        ("ser", "dapo", SER),
        ("vaa", "dapo", VAA),
        ("pivot", "dapo", {**SER, **VAA}),
        ("pivot-grpo", "grpo", {**SER, **VAA}),
        ("ser-vaa-local", "pivot", {"utility": "local"}),
        ("off-pg-vaa", "pivot", {"anchor_use": "off_policy"}),
        ("off-sft-vaa", "pivot", {"anchor_use": "sft"}),
        ("pivot-bounded", "pivot", {"utility_bound": 1.0, "soften_wrong": False}),
        ("pivot-adaptive", "pivot", {"beta": 1.0, "adapt_beta": True}),
        ("pivot-absolute", "pivot", {"beta": 1.0, "support_form": "absolute"}),
        ("pivot-weighted", "pivot-absolute", {"modulation": "weigh"}),
        ("gspo", "dapo", {**PLAIN, "ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4,
                          "aggregation": "sequence"}),
        ("dr-grpo", "dapo", {**PLAIN, "clip_high": 0.2, "normalise_std": False, "aggregation": "constant"}),
        ("cispo", "dapo", {"policy_loss": "cispo", "entropy_coef": 0.0}),
        ("sapo", "dapo", {"policy_loss": "sapo", "aggregation": "sequence", "entropy_coef": 0.0,
                          "dynamic_sampling": False}),
        ("rloo", "dr-grpo", {"baseline": "leave_one_out"}),
        ("reinforce-pp", "dapo", {**PLAIN, "clip_high": 0.2, "baseline": "batch", "std_over": "batch"}),
        ("noisy-rollout", "dapo", {**PLAIN, "clip_high": 0.2, "noise_share": 0.5}),
        ("exgrpo", "dr-grpo", {"replay": True, "solved_threshold": 0.35, "warmup_share": 1.0, "bucket_sigma": 0.125,
                               "anchor_use": "off_policy", "anchor_choice": "entropy"}),
        ("ssr", "dapo", {**PLAIN, "clip_high": 0.2, "aggregation": "sequence", "flat_groups": "by_advantage"}),
        ("grpo-replay", "ssr", {"flat_groups": "by_score"}),
        ("gspo+pivot", "gspo", {**SER, **VAA}),
        ("dr-grpo+vaa+noisy", "dr-grpo", {**VAA, "noise_share": 0.5}),
    ],
)  # fmt: skip
def test_a_method_differs_from_another_in_just_this(name: str, base: str, difference: dict) -> None:
    assert changed(name, base) == difference


def values(name: str, *settings: str) -> tuple:
    own = PRESETS[name].own_settings()
    return tuple(own[setting] for setting in settings)


def test_the_papers_numbers() -> None:
    assert values("pivot", "clip_low", "clip_high", "dual_clip") == (0.2, 0.28, 3.0)
    assert values("pivot", "future_window", "future_discount", "future_coef") == (32, 0.8, 0.5)
    assert values("pivot", "replay_share", "solved_threshold", "anchor_keep") == (0.5, 0.45, 0.5)
    assert values("pivot", "format_coef", "entropy_coef") == (0.1, 0.06)


def test_beta_and_lambda_exp_are_what_our_validation_split_chose() -> None:
    """The paper prints neither. In docs/results.md, beta = 0.5 collapses; CalibRL's weight is its own."""
    own_beta = {"pivot-adaptive": 1.0, "pivot-absolute": 1.0, "pivot-weighted": 1.0}
    own_coef = {"calibrl": 0.1, "calibrl-vaa": 0.1, "calibrl-original": 0.1}
    for name, method in PRESETS.items():
        assert method.settings()["beta"] == own_beta.get(name, 0.1)
        assert method.settings()["anchor_coef"] == own_coef.get(name, 0.3)


def test_numbers_from_the_baselines_own_code() -> None:
    probabilities = {name: method.corruption.corrupt_probability for name, method in PRESETS.items()}
    assert {name: p for name, p in probabilities.items() if p != 0.6} == {"vppo": 0.5}
    own = [name for name, method in PRESETS.items() if method.has_experts]
    assert set(own) == {"calibrl", "calibrl-vaa", "calibrl-original"}
    assert {values(name, "anchor_coef", "leaky_slope") for name in own} == {(0.1, 0.5)}
    centred = [name for name, method in PRESETS.items() if not method.advantage.normalise_std]
    assert centred == ["calibrl-original", "dr-grpo", "rloo", "exgrpo"]
    assert values("calibrl-original", "clip_low", "clip_high", "dual_clip") == (0.2, 0.2, 3.0)
    assert values("calibrl-original", "aggregation", "reference_kl_coef") == ("token", 0.0)


def test_what_each_method_needs() -> None:
    assert {n for n, m in PRESETS.items() if m.needs_reference} == {"grpo", "pivot-grpo"}
    others = {
        "gspo",
        "dr-grpo",
        "cispo",
        "sapo",
        "rloo",
        "reinforce-pp",
        "noisy-rollout",
        "ssr",
        "grpo-replay",
    }
    assert {n for n, m in PRESETS.items() if not m.needs_corrupted} == {
        "grpo", "dapo", "pepo", "calibrl", "calibrl-original", "ser", "exgrpo", *others,
    }  # fmt: skip
    assert {n for n, m in PRESETS.items() if m.needs_similarity} == {"pepo"}
    assert {n for n, m in PRESETS.items() if m.hides_image} == {"pgpo"}
    without = {n for n, m in PRESETS.items() if not m.needs_anchors}
    assert without == {"grpo", "dapo", "papo", "vppo", "vaa", "pepo", "pgpo", *others}


def test_an_unknown_method_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'pivot-grpo'"):
        preset("pivot_grpo")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"beta": -1.0}, r"beta must lie in \[0, inf\], got -1.0"),
        ({"future_discount": 1.5}, r"future_discount must lie in \[0, 1\]"),
        ({"future_window": 0}, r"future_window must lie in"),
        ({"utility": "global"}, r"utility must be one of none, local, future, got 'global'"),
        ({"token_weights": "peppo"}, r"token_weights must be one of none, pepo, pgpo, got 'peppo'"),
        (
            {"token_weights": "pepo"},
            r"token_weights cannot be 'pepo': the method has another visual part already",
        ),
        ({"dual_clip": 0.9}, r"dual_clip must be above 1"),
        ({"corrupt_probability": 1.5}, r"corrupt_probability must lie in \[0, 1\]"),
        ({"support_floor": 1.0}, r"support_floor must lie in \[-inf, 0\]"),
        ({"replay": False}, r"needs replay"),
    ],
)
def test_a_bad_switch_is_named(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        preset("pivot").with_settings(**change)


def test_every_method_comes_back_from_its_settings() -> None:
    for name, method in PRESETS.items():
        assert Method(name, method.summary).restored(method.settings()) == method
        assert preset("vppo").restored(method.settings()).settings() == method.settings()


def test_modules_are_added_by_name() -> None:
    method = preset("cispo+pivot")
    assert method.name == "cispo+pivot"
    assert (method.policy_loss, method.visual) == (preset("cispo").policy_loss, VisualAllocation())
    for name, message in (
        ("gspo+sre", "'sre' is not a module"),
        ("pivot+vaa", "pivot has 'vaa' already"),
        ("vppo+vaa", "another visual part"),
    ):
        with pytest.raises(ValueError, match=message):
            preset(name)


def test_a_configuration_without_the_newer_settings_comes_back() -> None:
    """As config.json of earlier runs has them."""
    new = {
        "policy_loss", "ratio", "constant_tokens", "weight_floor", "weight_cap", "gate_positive", "gate_negative",
        "baseline", "std_over", "noise_share", "noise_start", "noise_steepness", "noise_midpoint", "bucket_sigma",
        "anchor_choice", "flat_groups", "stored_groups", "stored_alpha", "replay_choice",
    }  # fmt: skip
    for name in ("grpo", "dapo", "papo", "vppo", "calibrl-original", "pivot", "pivot-grpo", "pivot-weighted"):
        old = {key: value for key, value in preset(name).settings().items() if key not in new}
        assert Method(name, preset(name).summary).restored(old) == preset(name)


def test_rows_are_drawn_in_one_way() -> None:
    assert preset("ser").with_settings(replay_choice="uniform").replay.replay_choice == "uniform"
    with pytest.raises(ValueError, match="replay_choice=uniform and bucket_sigma are two ways"):
        preset("exgrpo").with_settings(replay_choice="uniform")


def test_switches_add_and_remove_parts() -> None:
    dapo, pivot = preset("dapo"), preset("pivot")
    as_vaa = dapo.with_settings(utility="future", beta=0.3)
    assert as_vaa.visual == VisualAllocation(beta=0.3)
    bare = pivot.with_settings(utility="none", replay=False, anchor_use="none")
    assert replace(bare, name="dapo", summary=dapo.summary) == dapo
    assert dapo.with_settings(perception_coef=0.4).terms == (EntropyPenalty(), Perception(0.4))
    assert dapo.with_settings(reference_kl_coef=0.02, entropy_coef=0.0).terms == (ReferenceKL(0.02),)
    assert dapo.with_settings(shaping_floor=0.8).visual == TokenSelection(1.0, 0.8)
    assert isinstance(pivot.with_settings(utility_bound=1.0).visual, VariantAllocation)
    assert type(pivot.with_settings(beta=0.2).visual) is VisualAllocation
    sft = pivot.with_settings(anchor_use="sft")
    assert sft.trains_on_targets
    assert replace(sft, name="", summary="") == replace(preset("off-sft-vaa"), name="", summary="")


def test_a_setting_of_a_missing_part_is_refused() -> None:
    for name in (
        "beta",
        "replay_share",
        "anchor_coef",
        "utility_bound",
        "perception_clip",
        "off_policy_shaping",
        "weight_cap",
        "gate_positive",
        "noise_start",
        "stored_groups",
    ):
        with pytest.raises(UnknownSetting, match=f"{name} is not a setting of method 'dapo'"):
            preset("dapo").with_settings(**{name: 0.5})
    with pytest.raises(ValueError, match="utility cannot be 'future': the method has another visual part"):
        preset("vppo").with_settings(utility="future")


def test_nothing_branches_on_a_methods_name() -> None:
    for path in Path(pivot.method.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                words = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
                assert not words & set(PRESETS), f"{path.name}:{node.lineno}"
