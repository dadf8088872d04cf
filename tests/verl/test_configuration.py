"""verl itself reads what is composed for it: every key exists, every value passes its own checks, GPUs or not."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("verl")

from hydra import compose as hydra_compose
from hydra import initialize_config_module
from omegaconf import OmegaConf

from pivot import recipes
from pivot.engines.verl.compose import ClusterOptions, compose
from pivot.engines.verl.environment import broken_imports, check_found, check_imports
from pivot.engines.verl.overrides import ONLY, OURS, check_resolved
from pivot.errors import UserError
from pivot.method import preset


@pytest.mark.parametrize(
    ("recipe", "method", "rollout"),
    [
        ("tiny", "pivot", None),
        ("tiny", "grpo", None),
        ("geo3k-3b", "grpo", "sglang"),
        ("geo3k-7b-lora-verl", "grpo", None),
        ("geo3k-32b", "pivot", None),
    ],
)
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
    assert served.tensor_model_parallel_size == (4 if recipe == "geo3k-32b" else 1)
    model = found.actor_rollout_ref.model
    assert (model.lora_rank, model.lora_alpha) == ((64, 128) if "lora" in recipe else (0, 16))
    if "lora" in recipe:
        assert re.fullmatch(model.target_modules, "model.language_model.layers.0.mlp.up_proj")
        assert model.lora.merge
    check_resolved(partial(OmegaConf.select, found))


def test_what_slips_through_the_command_line_is_found_in_verls_configuration():
    """verl's own defaults remove padding, which replaces the forward of the attention."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        found = hydra_compose("ppo_trainer", overrides=["actor_rollout_ref.actor.strategy=fsdp2"])
    with pytest.raises(
        UserError, match=r"actor_rollout_ref\.model\.use_remove_padding is True, but must be false"
    ):
        check_resolved(partial(OmegaConf.select, found))


def test_every_name_of_the_refusals_is_one_of_verls():
    with initialize_config_module("verl.trainer.config", version_base=None):
        found = hydra_compose("ppo_trainer")
    unknown = [name for name in ONLY if name != "model_engine" and OmegaConf.select(found, name) is None]
    # The reference model has no settings of its own for these; verl takes them from the actor's.
    assert all(name.startswith("actor_rollout_ref.ref.") for name in unknown), unknown
    for name in OURS:
        section, _, key = name.rpartition(".")
        assert key in list(OmegaConf.select(found, section)) or section.endswith("override_config"), name


def test_everything_that_a_step_imports_is_there():
    check_found()
    assert broken_imports() == []
    with pytest.raises(UserError, match="needs vllm_of_nobody, which cannot be imported by the driver"):
        check_imports("by the driver", "vllm_of_nobody")


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
