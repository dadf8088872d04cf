"""A method of another package trains, resumes and is listed, with no change to this repository."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pivot
from pivot.cli import main
from pivot.cli.configuring import resolve
from pivot.config import Config, apply_settings, from_dict, to_dict
from pivot.errors import UserError
from pivot.evaluation.target import Target
from pivot.method import PRESETS, EntropyPenalty, Method, ReferenceKL

MODULE = '''
"""Leave-one-out advantages, an unclipped policy loss and a penalty on long responses, on top of PIVOT's replay."""

from dataclasses import dataclass, replace
from typing import ClassVar

from pivot.method import Bounds, GroupAdvantage, LossTerm, PolicyLoss, PolicyTerms, on_valid, preset


@dataclass(frozen=True)
class LeaveOneOut(GroupAdvantage):
    """Each reward minus the mean of its group's other rewards."""

    def __call__(self, rewards_PG):
        return (rewards_PG - rewards_PG.mean(dim=1, keepdim=True)) * rewards_PG.shape[1] / (rewards_PG.shape[1] - 1)


@dataclass(frozen=True)
class Unclipped(PolicyLoss):
    """-rho A, bounded by nothing but a largest ratio."""

    max_ratio: float = 10.0
    """Largest ratio."""

    def terms(self, logprobs_BT, old_logprobs_BT, advantage_BT, mask_BT):
        valid_BT = mask_BT.bool()
        ratio_BT = on_valid(logprobs_BT - old_logprobs_BT, valid_BT).exp().clamp(max=self.max_ratio)
        return PolicyTerms(-ratio_BT * on_valid(advantage_BT, valid_BT), on_valid(ratio_BT.detach(), valid_BT))


@dataclass(frozen=True)
class Brevity(LossTerm):
    """Lowers the log-probability of every token that is not the first."""

    name = "brevity"
    bounds: ClassVar[Bounds] = {"brevity_coef": (0, 1)}

    brevity_coef: float = 0.001
    """Weight of the penalty."""

    @property
    def weight(self):
        return self.brevity_coef

    def __call__(self, batch, totals):
        return totals.mean(on_valid(batch.given("new_logprobs_BT"), batch.mask_BT.bool()), batch.mask_BT)


base = preset("pivot")
mine = replace(
    base,
    name="brief",
    summary="PIVOT with leave-one-out advantages and no clip",
    policy_loss=Unclipped(),
    advantage=LeaveOneOut(),
    terms=(*base.terms, Brevity()),
)
'''
SPEC = "brief_methods.rl:mine"
SMALL = ["train.steps=2", "train.prompts_per_step=3", "train.minibatch_prompts=2", "rollout.responses=4",
         "rollout.max_tokens=48", "rollout.max_tries=1", "data.size=12", "data.validation_size=4", "eval.every=0",
         "eval.final_prompts=0", "checkpoint.every=1", "log.rollouts_per_step=0", "method.warmup_share=0",
         "method.brevity_coef=0.01", "method.max_ratio=5"]  # fmt: skip


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on Python's path with the package in it."""
    folder = tmp_path / "elsewhere" / "brief_methods"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "rl.py").write_text(MODULE)
    monkeypatch.syspath_prepend(folder.parent)
    forget("brief_methods")
    return folder.parent


def run_pivot(package: Path, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    source = str(Path(pivot.__file__).parents[1])
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(package), source])}
    return subprocess.run(
        [sys.executable, "-P", "-m", "pivot", *words],
        cwd=cwd, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip


def stop_after_step_one(run: Path) -> None:
    shutil.rmtree(run / "checkpoints" / "step-2")
    status = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(status | {"status": "stopped"}))


def test_it_trains_and_resumes_through_the_command_line(
    package: Path, tmp_path: Path, repeatable, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    settings = [word for setting in SMALL for word in ("--set", setting)]
    run = tmp_path / "run"
    assert main(["train", "--recipe", "tiny", "--method", SPEC, *settings, "--out", str(run)]) == 0
    stored = json.loads((run / "config.json").read_text())["method"]
    assert (stored["name"], stored["source"], stored["brevity_coef"]) == ("brief", SPEC, 0.01)
    rows = repeatable(run)
    assert any("loss/brevity" in row for row in rows)
    stop_after_step_one(run)
    done = run_pivot(package, tmp_path, "train", "--resume", str(run))
    assert done.returncode == 0, done.stderr
    assert (run / "checkpoints" / "step-2").is_dir()
    assert repeatable(run) == rows, "another process repeats the second step exactly"
    stop_after_step_one(run)
    monkeypatch.undo()
    forget("brief_methods")
    assert main(["train", "--resume", str(run)]) == 2
    missing = "There is no module 'brief_methods' on Python's path for the method brief_methods.rl"
    assert missing in capsys.readouterr().err


def forget(package: str) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]


def test_a_stored_configuration_comes_back(package: Path) -> None:
    config = apply_settings(from_dict({"method": SPEC}), ["method.brevity_coef=0.5", "method.beta=0.2"])
    assert config.method.terms[-1].weight == 0.5
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config
    with pytest.raises(UserError, match=r"method.brevity_coef must lie in \[0, 1\], got 2.0"):
        apply_settings(config, ["method.brevity_coef=2"])
    with pytest.raises(
        UserError, match=r"There is no setting method.brevity; the nearest is method.brevity_coef"
    ):
        apply_settings(config, ["method.brevity=2"])


def test_pivot_methods_lists_its_settings(package: Path, capsys) -> None:
    assert main(["methods", SPEC]) == 0
    shown = capsys.readouterr().out
    assert "* method.brevity_coef = 0.001  (float)" in shown
    assert "      Weight of the penalty." in shown


def test_a_registered_method_is_known_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from pivot.method import presets

    monkeypatch.setattr(presets, "_known", known := dict(presets._known))
    monkeypatch.setattr(presets, "_groups", {})
    method = Method("mine", "DAPO with a KL", terms=(ReferenceKL(0.02), EntropyPenalty()))
    pivot.register_method(method)
    pivot.register_method(method)
    assert known["mine"] == method
    with pytest.raises(ValueError, match="there is already another method of the name 'dapo'"):
        pivot.register_method(Method("dapo", "not the one"))
    assert "mine" not in PRESETS


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Path]:
    """A file that registers a method and leaves a trace of its import."""
    from pivot.method import presets

    file = tmp_path / "plugin.py"
    file.write_text(
        "from dataclasses import replace\nfrom pathlib import Path\n\nimport pivot\nfrom pivot.method import preset\n\n"
        "pivot.register_method(replace(preset('dapo'), name='from-plugin', summary='Registered by a plugin'))\n"
        "Path(__file__).with_suffix('.imported').touch()\n"
    )
    yield file
    presets._known.pop("from-plugin", None)
    for names in presets._groups.values():
        if "from-plugin" in names:
            names.remove("from-plugin")


def test_plugins_are_imported_before_a_method_is_resolved(
    plugin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="There is no method 'from-plugin'"):
        from_dict({"method": "from-plugin"})
    monkeypatch.chdir(plugin.parent)
    config = resolve("tiny", method="from-plugin", plugins=["plugin.py"])
    assert config.plugins == (str(plugin),)
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config
    (plugin.parent / "mine.yaml").write_text("plugins: [plugin.py]\nmethod: from-plugin\n")
    (plugin.parent / "second.py").touch()
    both = resolve(config_file="mine.yaml", plugins=["second.py"])
    assert both.plugins == (str(plugin), str(plugin.with_name("second.py")))
    assert apply_settings(Config(), ["method=from-plugin", "plugins=plugin.py"]).method == config.method


def test_evaluating_a_run_imports_none_of_its_plugins(plugin: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    stored = to_dict(Config()) | {"plugins": [str(plugin)]}
    (run / "config.json").write_text(json.dumps(stored))
    config = Target("run", tmp_path, run).config
    assert config is not None
    assert config.plugins == ()
    assert not plugin.with_suffix(".imported").exists()
