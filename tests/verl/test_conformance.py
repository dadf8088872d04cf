"""The same rows through the local engine and verl's FSDP2 engine, on one rank and on two (gloo), every preset."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pivot.method import PRESETS

pytest.importorskip("verl")
from local_ranks import make_untied

HERE = Path(__file__).parent
CLOSE = 1e-5
CLOSE_RELATIVE = 3e-6
"""Of the made-up batches, above 1."""
QUOTIENTS = {"support_BT": 3e-5, "utility_BT": 3e-5, "loss/ratio_max": 3e-5}
"""c = 1 - q/p, U from it, and p/p_old inherit the rounding of two log-probs, each of which may be 1e-5 off."""
SHARES = {"pgpo": 5e-5}
"""PGPO's weights divide by the spread of a response's divergences, so its advantages inherit more rounding."""
WEIGHTS = 2e-4
"""The learning rate: where a gradient is all rounding, Adam's step may go either way."""
CLOSE_IN_BF16 = {"*": 0.1, "weights": 4e-3, "loss/ratio_max": 0.5, "support_BT": 0.3, "utility_BT": 0.3}
CLOSE_IN_BF16 |= {"grad_norm": 0.02, "later_grad_norm": 0.2}
CLOSE_IN_BF16 |= {f"float32/{engine}_first_norm": 0.02 for engine in ("local", "ranks")}
CLOSE_IN_BF16 |= {f"float32/{engine}_second_norm": 0.3 for engine in ("local", "ranks")}
CLOSE_IN_BF16 |= {f"loss/{name}_tokens": 3.0 for name in ("clip_low", "clip_high", "dual_clip")}
"""Logits of 8 to 16 have steps of 1/16. The local engine also adds up its gradients in bfloat16, FSDP2 in float32.
Single tokens are clipped by one and not by the other. A step's first
gradients are at the same weights: their norms are at most 0.01 apart, and 0.012 from the same step in float32. The
second ones are at the weights that the first update left, where Adam probably makes whole steps of gradients that are
rounding: seen are 0.13 between the engines, 0.21 (local) and 0.12 (ranks) to float32."""
COUNTS = ("replayed", "anchors", "stored")
CASES = {
    1: ("grpo", "vaa", "pivot"),
    2: (
        "pivot",
        *(f"{method}@untied" for method in PRESETS),
        *(f"{method}@{variant}" for variant in ("bf16", "lora") for method in ("pivot", "grpo")),
        "pivot@frozen",
    ),
}
"""By the number of ranks, methods and variants of the model: all of them where it is harder.

The tiny model's head is tied to its embeddings, as 3B's; 7B and 32B have heads of their own. `bf16` is untied too and
checkpoints gradients, as the recipes do.
"""


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def differences(request, tmp_path_factory):
    """The largest difference by method and name."""
    folder = tmp_path_factory.mktemp("conformance")
    out, untied = folder / "differences.json", folder / "untied"
    make_untied(untied)
    command = [sys.executable, "-W", "ignore", str(HERE / "conformance.py")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = []
    for rank in range(request.param):
        log = (folder / f"rank-{rank}.log").open("wb")
        arguments = [
            str(rank),
            str(request.param),
            str(folder / "meeting"),
            str(out),
            str(untied),
            *CASES[request.param],
        ]
        processes.append(
            subprocess.Popen([*command, *arguments], env=environment, stdout=log, stderr=subprocess.STDOUT)
        )
    try:
        codes = [process.wait(timeout=3000) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert codes == [0] * request.param, (folder / "rank-0.log").read_text()[-3000:]
    return json.loads(out.read_text())


def test_one_row_equal_lengths_and_no_image_do_not_crash(differences):
    """verl #7899: its own nested position ids crash on such batches; anchors are often like that."""
    found = differences["odd batches"]
    assert len(found) == 18
    assert all(apart <= CLOSE_RELATIVE for apart in found.values()), found


def test_every_preset_gives_the_local_engines_numbers(differences):
    for case in _cases(differences):
        found, close = differences[case], CLOSE_IN_BF16 if case.endswith("@bf16") else {}
        assert ("float32/ranks_first_norm" in found) == case.endswith("@bf16")
        compared = {name: v for name, v in found.items() if name not in (*COUNTS, "weights")}
        allowed = {**QUOTIENTS, "advantage_BT": SHARES.get(case.partition("@")[0], CLOSE)}
        apart = {
            name: v
            for name, v in compared.items()
            if not v <= close.get(name, close.get("*", allowed.get(name, CLOSE)))
        }
        assert not apart, f"{case}: {apart}"
        assert {
            "clean_logprobs_BT",
            "entropy_BT",
            "advantage_BT",
            "loss/total",
            "grad_norm",
            "later_grad_norm",
        } <= found.keys()
        assert found["weights"] <= close.get("weights", WEIGHTS), case


def test_the_rows_reach_every_part(differences):
    """Replay, anchors, support, dependency and reference: a part that is never reached would prove nothing."""
    for case in _cases(differences):
        found, switches = differences[case], PRESETS[case.partition("@")[0]]
        assert bool(found["replayed"]) == (switches.replay is not None or switches.stored is not None), case
        assert bool(found["stored"]) == (switches.stored is not None), case
        assert bool(found["anchors"]) == switches.needs_anchors, case
        assert ("corrupted_logprobs_BT" in found) == switches.needs_corrupted, case
        assert ("similarity_BT" in found) == switches.needs_similarity, case
        assert ("reference_logprobs_BT" in found) == switches.needs_reference, case
    assert "support_BT" in differences["pivot"]
    assert "dependency" in differences["pivot"]


def test_only_what_is_trained_changes(differences):
    changed = {
        name.partition("@")[2]: parts for name, parts in differences.items() if name.startswith("changed@")
    }
    expected = {"": ["language", "vision"], "untied": ["language", "vision"], "bf16": ["language", "vision"]}
    expected |= {"lora": ["adapters"], "frozen": ["language"]}
    assert changed == {variant: expected[variant] for variant in changed}


def _cases(differences) -> list[str]:
    (cases,) = [cases for cases in CASES.values() if set(cases) <= differences.keys()]
    return list(cases)
