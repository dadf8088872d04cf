"""Settings for verl itself (`--verl A.B=C`) that a run cannot have.

Some replace the forward of the attention, which would drop the `shared_prefix` argument and let sibling responses see
each other; others would be ignored, because the run's own configuration decides. Needs no verl.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pivot.errors import UserError

MODEL, ACTOR, REF = (f"actor_rollout_ref.{part}" for part in ("model", "actor", "ref"))
ROLLOUT = "actor_rollout_ref.rollout"
FORWARD = "it replaces the model's forward, and rows are packed as trees that only ours can read"
ONLY: dict[str, tuple[tuple[str, ...], str]] = {
    f"{MODEL}.use_remove_padding": (("false",), FORWARD),
    f"{MODEL}.use_fused_kernels": (("false",), FORWARD),
    f"{MODEL}.use_liger": (("false",), FORWARD),
    f"{MODEL}.tiled_mlp.enabled": (("false",), FORWARD),
    f"{MODEL}.mtp.enable": (("false",), FORWARD),
    **{
        f"{part}.{name}": (("1",), "sequence parallelism splits rows that are packed as trees")
        for part in (ACTOR, REF)
        for name in ("ulysses_sequence_parallel_size", "fsdp_config.ulysses_sequence_parallel_size")
    },
    **{
        f"{part}.{name}": (("false",), FORWARD)
        for part in (ACTOR, REF)
        for name in (
            "use_remove_padding",
            "use_fused_kernels",
            "use_prefix_grouper",
            "fsdp_config.qat.enable",
        )
    },
    **{
        f"{part}.fsdp_config.use_torch_compile": (
            ("false",),
            "attention over trees cannot be compiled by verl",
        )
        for part in (ACTOR, REF)
    },
    **{f"{part}.strategy": (("fsdp2",), "the ranks work on FSDP2's shards") for part in (ACTOR, REF)},
    "model_engine": (("dp",), "the ranks work on FSDP2's shards"),
}
"""Setting -> the values it may have, and why."""
OURS = {
    f"{MODEL}.path": "model.path (--model)",
    f"{MODEL}.lora_rank": "model.lora_rank",
    f"{MODEL}.lora_alpha": "model.lora_rank",
    f"{MODEL}.target_modules": "model.lora_rank",
    f"{MODEL}.lora.merge": "model.lora_rank",
    f"{MODEL}.override_config.attn_implementation": "model.attention",
    f"{ACTOR}.ppo_max_token_len_per_gpu": "train.micro_batch_tokens",
    f"{ACTOR}.ppo_mini_batch_size": "train.minibatch_prompts",
    f"{ACTOR}.use_kl_loss": "--method",
    f"{ACTOR}.optim.lr": "train.lr",
    f"{ROLLOUT}.n": "rollout.responses",
    f"{ROLLOUT}.temperature": "rollout.temperature",
    f"{ROLLOUT}.top_p": "rollout.top_p",
    f"{ROLLOUT}.top_k": "rollout.top_k",
    f"{ROLLOUT}.name": "--rollout",
    "algorithm.adv_estimator": "--method",
    "data.train_batch_size": "train.prompts_per_step",
    "data.max_prompt_length": "rollout.max_prompt_tokens",
    "data.max_response_length": "rollout.max_tokens",
    "trainer.nnodes": "--nodes",
    "trainer.n_gpus_per_node": "--gpus",
    "trainer.total_training_steps": "train.steps",
    "trainer.save_freq": "checkpoint.every",
    "trainer.test_freq": "eval.every",
}
"""Setting of verl -> the option or setting that decides it in every run of this project."""


def check_extra(extra: Iterable[str]) -> None:
    """Refuse such settings on the command line; a section that contains one must be written setting by setting."""
    for text in extra:
        name, given, value = text.lstrip("+~").partition("=")
        group, _, package = name.partition("@")  # Hydra: `actor@actor_rollout_ref.actor=FILE`
        name = package or group.replace("/", ".")
        if not given or text.startswith("~"):
            raise UserError(f"--verl takes A.B=C, a setting of verl with its value, got {text!r}")
        if name in OURS:
            raise UserError(f"--verl {name} is decided by this project's own {OURS[name]}: set that instead")
        _check(name, value)
        inside = [known for known in (*ONLY, *OURS) if known.startswith(f"{name}.")]
        if inside:
            raise UserError(
                f"--verl {text} replaces a whole section; give its settings one by one, such as {inside[0]}=..."
            )


def check_resolved(select: Callable[[str], Any]) -> None:
    """The same for verl's whole configuration, however a setting was given.

    Args:
        select: value of a setting by its name; None where there is no such setting.
    """
    for name in ONLY:
        value = select(name)
        if value is not None:
            _check(name, str(value))


def _check(name: str, value: str, only: Mapping[str, tuple[tuple[str, ...], str]] = ONLY) -> None:
    if name in only and value.strip("'\"").lower() not in only[name][0]:
        allowed, why = only[name]
        raise UserError(f"verl's {name} is {value}, but must be {' or '.join(allowed)}: {why}")
