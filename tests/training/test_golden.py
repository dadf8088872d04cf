"""Golden runs: a refactoring must leave every number of these runs as it is.

`python tests/training/test_golden.py` writes golden.json anew; do that only when numbers are meant to change (another
checkpoint, another equation), and say why in the commit.

The runs are made in a process of their own that uses no vector instructions beyond AVX2, so that machines with newer
ones round alike and hold the same numbers.
"""

import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

GOLDEN = Path(__file__).with_name("golden.json")
ROUNDING = 2e-3
"""Sums in another order (how rows are packed, which kernel attends) differ in the last bits, and eight training steps
make that grow; a changed equation, draw or mask is off by far more. Counts have to be equal all the same."""
AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "AVX2",
    "OMP_NUM_THREADS": "1",
}
METHODS = ("pivot", "dapo", "papo", "vppo")
SETTINGS = [
    "train.steps=8",
    "train.prompts_per_step=4",
    "train.minibatch_prompts=2",
    "rollout.responses=4",
    "rollout.max_tokens=64",
    "data.size=16",
    "data.validation_size=4",
    "eval.every=4",
    "eval.samples=2",
    "eval.final_prompts=0",
    "checkpoint.every=100",
    "log.rollouts_per_step=0",
]


def machine() -> dict[str, str]:
    """Another of these may round differently, and one differently rounded draw changes all that follows."""
    import torch
    import transformers

    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "processor": platform.machine(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
    }


def golden_rows(method: str, folder: Path) -> list[dict]:
    """The metrics of a run in this process."""
    from dataclasses import replace

    from pivot import recipes
    from pivot.config import apply_settings
    from pivot.method import preset
    from pivot.runs.run import train

    chosen = preset(method)
    settings = [*SETTINGS, "method.warmup_share=0.25"] if chosen.replay else SETTINGS
    config = apply_settings(replace(recipes.get("tiny"), method=chosen), settings)
    train(config, folder / method, quiet=True)
    rows = [json.loads(line) for line in (folder / method / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "memory/"))} for row in rows]


def run_elsewhere(*methods: str) -> dict:
    """The runs, in a process that is confined to AVX2."""
    words = [sys.executable, __file__, "--print", *methods]
    done = subprocess.run(words, env=os.environ | AVX2, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def found():
    """The runs of all methods, made once."""
    return run_elsewhere(*METHODS)


@pytest.mark.parametrize("method", METHODS)
def test_golden_run(method, found):
    golden = json.loads(GOLDEN.read_text())
    rows = found["runs"][METHODS.index(method)]
    assert len(rows) == 8
    if golden["machine"] != found["machine"]:
        pytest.skip(f"pinned on {golden['machine']}, this is {found['machine']}")
    for row, pinned in zip(rows, golden["runs"][method], strict=True):
        assert row.keys() == pinned.keys()
        for name, value in pinned.items():
            if isinstance(value, float):
                value = pytest.approx(value, rel=ROUNDING, abs=1e-6)
            assert row[name] == value, f"step {row['step']}: {name}"


def test_the_golden_runs_are_worth_pinning():
    """They replay, calibrate, filter and move: a part that is never reached is not held."""
    rows = json.loads(GOLDEN.read_text())["runs"]["pivot"]
    assert any(row["buffer/replay_share"] > 0 for row in rows)
    assert any(row.get("loss/calibration", 0) > 0 for row in rows)
    assert any(row["rollout/groups_dropped"] > 0 for row in rows)
    assert all(math.isfinite(row["loss/total"]) for row in rows if "loss/total" in row)
    assert len({row["reward/accuracy"] for row in rows}) > 1


def print_runs(methods: list[str]) -> None:
    runs = []
    for method in methods:
        with tempfile.TemporaryDirectory() as scratch:
            runs.append(golden_rows(method, Path(scratch)))
    print(json.dumps({"machine": machine(), "runs": runs}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--print"]:
        print_runs(sys.argv[2:])
    else:
        found = run_elsewhere(*METHODS)
        runs = dict(zip(METHODS, found["runs"], strict=True))
        GOLDEN.write_text(json.dumps({"machine": found["machine"], "runs": runs}, indent=1) + "\n")
        print(f"wrote {GOLDEN}")
