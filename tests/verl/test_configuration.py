"""verl itself reads what is composed for it: every key exists, every value passes its own checks, GPUs or not."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("verl")

from hydra import compose as hydra_compose
from hydra import initialize_config_module

from pivot import recipes
from pivot.engines.verl.compose import ClusterOptions, compose
from pivot.method import preset


@pytest.mark.parametrize("rollout", [None, "sglang"])
@pytest.mark.parametrize("method", ["pivot", "grpo"])
@pytest.mark.parametrize("recipe", ["tiny", "geo3k-3b", "geo3k-7b", "virl39k-3b"])
def test_verl_accepts_the_configuration(recipe, method, rollout):
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    config = replace(recipes.get(recipe), method=preset(method))
    cluster = ClusterOptions(2, 8, "auto", rollout) if recipe != "tiny" else ClusterOptions(gpus=3)
    launch = compose(config, cluster, Path("/runs/a b"), temporary=Path("/tmp/t"))
    with initialize_config_module("verl.trainer.config", version_base=None):
        found = hydra_compose("ppo_trainer", overrides=list(launch.command[3:]))
    validate_config(found, need_reference_policy(found), need_critic(found))
    assert need_reference_policy(found) == config.method.needs_reference
    assert not need_critic(found)
    assert found.pivot.run == "/runs/a b"
    actor = omega_conf_to_dataclass(found.actor_rollout_ref.actor)
    assert actor.optim.lr == config.train.lr
    assert tuple(actor.optim.betas) == (config.train.adam_beta1, config.train.adam_beta2)
    assert actor.optim.clip_grad == config.train.grad_clip
    served = omega_conf_to_dataclass(found.actor_rollout_ref.rollout)
    assert served.name == ("pivot" if recipe == "tiny" else rollout or "vllm")
    assert served.n == config.rollout.responses


WHAT_IS_MISSING = "from pivot.engines.verl import platform, plugin; print(plugin.missing())"


@pytest.mark.parametrize(
    ("switch", "expected"),
    [("1", "[]"), ("", "['the trainer', 'the rollout replica', 'the FSDP2 engine on CPUs']")],
    ids=["switched on", "other runs of verl"],
)
def test_the_plug_in_registers_all_or_nothing(switch, expected):
    """verl itself would swallow a failure; and runs of others on the same machine are left alone."""
    code = f"import os; import verl; os.environ['VERL_PLATFORM'] = 'cpu'; {WHAT_IS_MISSING}"
    environment = {name: value for name, value in os.environ.items() if name != "VERL_PLATFORM"}
    platform = {"VERL_PLATFORM": "cpu"} if switch else {}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**environment, **platform, "PIVOT_VERL": switch},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip().endswith(expected), done.stderr[-2000:]
