"""verl's FSDP2 engine without Ray: every rank of a gloo group runs the driver's code as well, with equal results."""

import os
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import distributed

from pivot.engines.verl.compose import ClusterOptions, compose
from pivot.engines.verl.rank import Rank
from pivot.models.loading import load_policy, load_tokenizer_only, resolve_model, save_policy


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


def composed(config, *extra: str):
    """verl's whole configuration of a run, as `main_ppo` resolves it."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module

    launch = compose(config, ClusterOptions(gpus=distributed.get_world_size()), Path("/runs/x"))
    with initialize_config_module("verl.trainer.config", version_base=None):
        return hydra_compose("ppo_trainer", overrides=[*launch.command[3:], *extra])


def build_engine(config, *extra: str):
    """verl's own FSDP2 engine as its worker makes it, from the settings that a run is started with."""
    import verl  # noqa: F401 - loads the plug-in
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.engine import EngineRegistry

    found = composed(config, *extra).actor_rollout_ref
    actor = omega_conf_to_dataclass(found.actor)
    torch.manual_seed(actor.engine.seed)
    engine = EngineRegistry.new(
        model_type="language_model",
        backend="fsdp2",
        model_config=omega_conf_to_dataclass(found.model),
        engine_config=actor.engine,
        optimizer_config=actor.optim,
        checkpoint_config=actor.checkpoint,
    )
    engine.initialize()
    return engine


def build_rank(config, *extra: str) -> Rank:
    """`extra` are settings of verl."""
    tokenizer_only = load_tokenizer_only(Path(resolve_model(config.model.path)))
    engine = build_engine(config, *extra)
    frozen = build_engine(config) if config.method.needs_reference and not config.model.lora_rank else None
    return Rank.build(config, tokenizer_only, engine, frozen)


def make_untied(folder: Path) -> None:
    """The tiny model with a head of its own, as the 7B and 32B models have one."""
    policy = load_policy("tiny")
    model, embeddings = policy.model, policy.model.get_input_embeddings().weight.detach()
    model.config.tie_word_embeddings = model.config.text_config.tie_word_embeddings = False
    noise = torch.randn(embeddings.shape, generator=torch.Generator().manual_seed(0))
    head = embeddings + 0.05 * embeddings.std() * noise
    model.lm_head.weight = torch.nn.Parameter(head)
    save_policy(policy, folder)
