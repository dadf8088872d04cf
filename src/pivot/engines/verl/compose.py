"""From a run's configuration to verl's environment variables and command line. Needs no verl."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from pivot.config import Config
from pivot.engines.settings import logprob_temperature
from pivot.errors import UserError
from pivot.models.architecture import Architecture, find_architecture
from pivot.models.family import FAMILIES, find_family
from pivot.models.naming import TINY, resolve_model

MODULE = "pivot.engines.verl"
ROLLOUTS = "pivot.engines.verl.rollouts"
OBJECT_STORE = 300_000_000
"""Bytes of a local Ray's object store on CPUs, where models are tiny."""
GPU_SHARE = 0.6
"""Share of a GPU's memory for the rollout server while it is awake."""
SERVED_SHARE = 0.4
"""Share of a GPU's memory that a server's weights may take; larger models are split over several GPUs."""
USABLE = 0.9
"""Share of a GPU's memory to plan with."""
USUAL_GPU = 80 * 10**9
"""Bytes of a GPU, where this machine has none."""


@dataclass(frozen=True)
class ClusterOptions:
    """The nodes and ranks of a run; `cluster.json` of its folder."""

    nodes: int = 1
    gpus: int = 1
    """Ranks per node."""
    address: str | None = None
    """Of a running Ray cluster; None starts one on this machine."""
    rollout: str | None = None
    """`vllm` or `sglang`; None: vLLM on GPUs, this project's own replica on CPUs."""
    extra: tuple[str, ...] = ()
    """Settings for verl itself, as on its command line; they take precedence."""
    restarts: int = 0
    """How often the run goes on by itself from its last checkpoint after a process or node has died."""

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus


@dataclass(frozen=True)
class Launch:
    """A process to start."""

    environment: dict[str, str]
    command: tuple[str, ...]

    def text(self) -> str:
        """As typed into a shell, one setting per line."""
        lines = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " \\\n  ".join([*lines, shlex.join(self.command[:3]), *map(shlex.quote, self.command[3:])])


def device_of(config: Config) -> str:
    """`cuda` or `cpu`; `auto` is `cpu` only for the tiny models on a machine without a GPU."""
    device = config.model.device.partition(":")[0]
    if device != "auto":
        return device
    return "cpu" if config.model.path in TINY and not torch.cuda.is_available() else "cuda"


def compose(
    config: Config, cluster: ClusterOptions, run: Path, *, resume: bool = False, temporary: Path | None = None
) -> Launch:
    """verl's command for this run.

    Example:
        compose(recipes.get("geo3k-7b"), ClusterOptions(nodes=2, gpus=8), Path("runs/x")).text()
    """
    on_cpu = device_of(config) == "cpu"
    settings = {
        **_run(config, run, resume),
        **_trainer(config, cluster),
        **_actor(config, on_cpu),
        **_adapters(config),
        **_rollout(config, cluster, on_cpu),
        **_ray(cluster, on_cpu, temporary),
    }
    if not on_cpu and offloads(config, cluster, _gpu_bytes()):
        at = "actor_rollout_ref.actor.fsdp_config"
        settings |= {f"{at}.param_offload": True, f"{at}.optimizer_offload": True}
    command = (
        sys.executable,
        "-m",
        MODULE,
        *(f"{name}={_value(value)}" for name, value in settings.items()),
        *cluster.extra,
    )
    return Launch(_environment(on_cpu), command)


def _environment(on_cpu: bool) -> dict[str, str]:
    found = {
        "PIVOT_VERL": "1",
        "PYTHONSAFEPATH": "1",
        "HYDRA_FULL_ERROR": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if on_cpu:
        found |= {
            "VERL_PLATFORM": "cpu",
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
            "RAY_enable_metrics_collection": "0",
            "RAY_memory_monitor_refresh_ms": "0",
        }
    return found


def _run(config: Config, run: Path, resume: bool) -> dict[str, Any]:
    where = str(run.absolute())
    return {
        "hydra.run.dir": where,
        "hydra.output_subdir": "verl",
        "hydra/job_logging": "none",
        "hydra/hydra_logging": "none",
        "+pivot.run": where,
        "+pivot.resume": resume,
        "trainer.default_local_dir": f"{where}/checkpoints",
        "trainer.project_name": "pivot",
        "trainer.experiment_name": run.name,
    }


def _trainer(config: Config, cluster: ClusterOptions) -> dict[str, Any]:
    train = config.train
    return {
        "trainer.use_v1": True,
        "trainer.v1.trainer_mode": "pivot",
        "trainer.device": device_of(config),
        "trainer.nnodes": cluster.nodes,
        "trainer.n_gpus_per_node": cluster.gpus,
        "trainer.total_epochs": 1,
        "trainer.save_freq": -1,
        "trainer.test_freq": -1,
        "trainer.val_before_train": False,
        "trainer.resume_mode": "disable",
        "trainer.logger": ["console"],
        "algorithm.adv_estimator": "grpo",
        "data.train_batch_size": train.prompts_per_step,
        "data.max_prompt_length": config.rollout.max_prompt_tokens,
        "data.max_response_length": config.rollout.max_tokens,
        "reward.num_workers": 0,  # the driver's own verifier computes rewards
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
    }


def _actor(config: Config, on_cpu: bool) -> dict[str, Any]:
    train, model = config.train, config.model
    actor, ref = "actor_rollout_ref.actor", "actor_rollout_ref.ref"
    settings: dict[str, Any] = {
        "actor_rollout_ref.model.path": resolve_model(model.path),
        "actor_rollout_ref.model.use_remove_padding": False,
        "actor_rollout_ref.model.enable_gradient_checkpointing": model.gradient_checkpointing,
        "actor_rollout_ref.model.trust_remote_code": model.trust_remote_code,
        "+actor_rollout_ref.model.override_config.attn_implementation": model.attention,
        f"{actor}.strategy": "fsdp2",
        f"{actor}.use_dynamic_bsz": True,
        f"{actor}.ppo_max_token_len_per_gpu": train.micro_batch_tokens,
        f"{actor}.ppo_mini_batch_size": train.minibatch_prompts,
        f"{actor}.use_kl_loss": config.method.needs_reference,
        f"{actor}.optim.lr": train.lr,
        f"{actor}.optim.weight_decay": train.weight_decay,
        f"{actor}.optim.betas": [train.adam_beta1, train.adam_beta2],
        f"{actor}.optim.clip_grad": train.grad_clip,
        f"{actor}.grad_clip": train.grad_clip,
        f"{actor}.fsdp_config.seed": train.seed,
        # Else every rank keeps the gradient of the whole model until the last micro-batch; adapters' are small.
        f"{actor}.fsdp_config.use_no_sync_for_gradient_accumulation": bool(model.lora_rank),
        # verl keeps its reference model on the CPU between passes; without a GPU it cannot be moved.
        f"{ref}.fsdp_config.forward_only": not on_cpu,
    }
    computed = "bf16" if model.dtype == "bfloat16" else "fp32"
    for part in (actor, ref):
        settings |= {
            f"{part}.fsdp_config.use_torch_compile": False,
            f"{part}.fsdp_config.model_dtype": "fp32",
            f"+{part}.fsdp_config.mixed_precision.param_dtype": computed,
            f"+{part}.fsdp_config.mixed_precision.reduce_dtype": "fp32",
            f"+{part}.fsdp_config.mixed_precision.buffer_dtype": "fp32",
        }
    return settings


def _adapters(config: Config) -> dict[str, Any]:
    """LoRA as in the local engine: its layers, and twice the rank as alpha. Servers receive merged weights."""
    rank, at = config.model.lora_rank, "actor_rollout_ref.model"
    if not rank:
        return {}
    texts = "|".join(sorted({find_family(name).text_name for name in FAMILIES}))
    return {
        f"{at}.lora_rank": rank,
        f"{at}.lora_alpha": 2 * rank,
        f"{at}.target_modules": f"model[.]({texts})[.].*[.](q|k|v|o|gate|up|down)_proj",
        f"{at}.lora.merge": True,
    }


def offloads(config: Config, cluster: ClusterOptions, gpu_bytes: int = USUAL_GPU) -> bool:
    """Whether ranks keep weights and optimizer in the machine's memory while they are not used: always on one GPU, and
    where they would not fit beside an awake rollout server."""
    model = _architecture(config.model.path)
    if cluster.ranks == 1 or model is None:
        return cluster.ranks == 1
    adapters = config.model.lora_rank * model.adapter_parameters
    frozen = model.vision_parameters if config.model.freeze_vision else 0
    trained = adapters or model.parameters - frozen
    shards = (4 * (model.parameters + adapters) + 8 * trained) / cluster.ranks
    return shards + GPU_SHARE * gpu_bytes > USABLE * gpu_bytes


def tensor_parallel(config: Config, cluster: ClusterOptions, gpu_bytes: int = USUAL_GPU) -> int:
    """GPUs of a node that share one rollout server: the fewest that hold the model's bfloat16 weights.

    Example:
        tensor_parallel(recipes.get("geo3k-32b"), ClusterOptions(gpus=8)) == 4
    """
    model, shared = _architecture(config.model.path), 1
    if model is None:
        return shared
    while 2 * model.parameters / shared > SERVED_SHARE * gpu_bytes and cluster.gpus % (2 * shared) == 0:
        shared *= 2
    return shared


@cache
def _architecture(path: str) -> Architecture | None:
    """None: a hub id that is not on this machine, and not a published size."""
    try:
        return find_architecture(path)
    except UserError:
        return None


def _gpu_bytes() -> int:
    return torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else USUAL_GPU


def _rollout(config: Config, cluster: ClusterOptions, on_cpu: bool) -> dict[str, Any]:
    rollout, at = config.rollout, "actor_rollout_ref.rollout"
    name = cluster.rollout or ("pivot" if on_cpu else "vllm")
    kind = "ReplicaRollouts" if name == "pivot" else "ServerRollouts"
    settings = {
        f"{at}.name": name,
        f"{at}.n": rollout.responses,
        f"{at}.temperature": rollout.temperature,
        f"{at}.top_p": rollout.top_p,
        f"{at}.top_k": rollout.top_k or -1,
        f"{at}.tensor_model_parallel_size": (1 if on_cpu else tensor_parallel(config, cluster, _gpu_bytes())),
        f"{at}.max_model_len": rollout.max_prompt_tokens + rollout.max_tokens,
        f"{at}.dtype": config.model.dtype,
        f"{at}.agent.num_workers": 1,
        f"+{at}.agent.agent_loop_manager_class": f"{ROLLOUTS}.{kind}",
    }
    if name == "pivot":
        chosen = {f.name: getattr(config.model, f.name) for f in dataclasses.fields(config.model)}
        kept = ("dtype", "attention", "min_pixels", "max_pixels", "trust_remote_code")
        settings |= {f"+{at}.engine_kwargs.pivot.{key}": chosen[key] for key in kept}
        settings[f"+{at}.engine_kwargs.pivot.temperature"] = logprob_temperature(config)
        return settings | {f"{at}.free_cache_engine": False}
    return settings | {f"{at}.gpu_memory_utilization": GPU_SHARE, f"{at}.free_cache_engine": True}


def _ray(cluster: ClusterOptions, on_cpu: bool, temporary: Path | None) -> dict[str, Any]:
    at = "ray_kwargs.ray_init"
    if cluster.address is not None:
        # A running cluster's workers start without this environment: the job carries it.
        shared = {f"+{at}.runtime_env.env_vars.{k}": f"'{v}'" for k, v in _environment(on_cpu).items()}
        return {f"+{at}.address": cluster.address, **shared}
    settings: dict[str, Any] = {f"+{at}.include_dashboard": False}
    if temporary is not None:
        settings[f"+{at}._temp_dir"] = str(temporary)
    if on_cpu:
        settings |= {
            f"{at}.num_cpus": 16 * (cluster.ranks + 1),
            f"+{at}.num_gpus": cluster.ranks,
            f"+{at}.object_store_memory": OBJECT_STORE,
            f"+{at}._node_ip_address": "127.0.0.1",
        }
    return settings


def _value(value: Any) -> str:
    """As Hydra's command line expects it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return json.dumps(value)
    text = str(value)
    if isinstance(value, str) and not text.startswith("'") and set(text) & set(" ,:=[]{}()\\\"'~*$"):
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return text
