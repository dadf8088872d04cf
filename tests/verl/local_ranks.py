"""verl's FSDP2 engine without Ray: every rank of a gloo group runs the driver's code as well, with equal results."""

import os
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import distributed

from pivot.engines.verl.rank import Rank
from pivot.models.loading import load_tokenizer_only, resolve_model


class LocalRanks:
    """`jobs.Ranks` over a gloo group: each process does its own job, all learn all results."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank

    @property
    def size(self) -> int:
        return distributed.get_world_size()

    def score(self, jobs):
        return self._gather(self.rank.score(jobs[distributed.get_rank()]))

    def update(self, jobs):
        return self._gather(self.rank.update(jobs[distributed.get_rank()]))

    def save(self, folder):
        return LocalSaving(self, self.rank.save(folder))

    def load(self, folder):
        self.rank.load(folder)
        distributed.barrier()

    def _gather(self, mine):
        found = [None] * self.size
        distributed.all_gather_object(found, mine)
        return found


@dataclass
class LocalSaving:
    """`saving.Saving`: done once every rank is."""

    ranks: LocalRanks
    mine: Future

    def wait(self):
        return {
            name: digest for part in self.ranks._gather(self.mine.result()) for name, digest in part.items()
        }


def start_group(rank: int, size: int, meeting: Path) -> None:
    """A gloo group that meets in a file: no port is needed."""
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK="0", VERL_PLATFORM="cpu", PIVOT_VERL="1"
    )
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)


def build_engine(model: str, config):
    """verl's own FSDP2 engine as its worker makes it."""
    import verl  # noqa: F401 - loads the plug-in
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
    from verl.workers.engine import EngineRegistry

    single = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    train = config.train
    engine = EngineRegistry.new(
        model_type="language_model",
        backend="fsdp2",
        model_config=HFModelConfig(
            path=resolve_model(model),
            use_remove_padding=False,
            enable_gradient_checkpointing=False,
            override_config={"attn_implementation": "sdpa"},
        ),
        engine_config=FSDPEngineConfig(
            strategy="fsdp2",
            forward_only=False,
            use_torch_compile=False,
            fsdp_size=-1,
            mixed_precision=single,
            model_dtype="fp32",
            use_remove_padding=False,
        ),
        optimizer_config=FSDPOptimizerConfig(
            lr=train.lr,
            betas=(train.adam_beta1, train.adam_beta2),
            weight_decay=train.weight_decay,
            clip_grad=train.grad_clip,
            total_training_steps=train.steps,
        ),
        checkpoint_config=CheckpointConfig(),
    )
    engine.initialize()
    return engine


def build_rank(config) -> Rank:
    tokenizer_only = load_tokenizer_only(Path(resolve_model(config.model.path)))
    engine = build_engine(config.model.path, config)
    frozen = build_engine(config.model.path, config) if config.method.needs_reference else None
    return Rank.build(config, tokenizer_only, engine, frozen)
