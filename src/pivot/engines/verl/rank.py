"""What one rank does with its jobs: the forwards of Eq. 4, 5, 10 and the update of Eq. 16, by the functions of
`pivot.method`, on verl's FSDP2 engine."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.tensor import DTensor

from pivot.config import Config
from pivot.engines.verl.jobs import Piece, RankUpdate, ScoreJob, UpdateJob
from pivot.engines.verl.sharded import ShardedPolicy
from pivot.method import Batch, Method, objective
from pivot.models.corruption import Corruptor
from pivot.models.loading import save_outline
from pivot.models.policy import Policy, ResponseStatistics
from pivot.models.rows import PromptWithResponses
from pivot.training.build import corruption_of, logprob_temperature
from pivot.training.scoring import View
from pivot.training.update import MAXIMA


@dataclass
class Rank:
    """The model of one rank, and the frozen one it started from where the method compares with it."""

    engine: Any
    """verl's FSDPEngine: module, optimizer, modes, offloading, clipping."""
    policy: ShardedPolicy
    method: Method
    corruptor: Corruptor
    outline: Policy
    """Tokens and images, no weights."""
    dtype: torch.dtype = torch.float32
    """Of an exported model."""
    reference_engine: Any = None
    reference: ShardedPolicy | None = None

    @classmethod
    def build(cls, config: Config, outline: Policy, engine: Any, reference_engine: Any = None) -> Rank:
        """From engines that verl has initialised."""
        temperature = logprob_temperature(config)
        return cls(
            engine=engine,
            policy=ShardedPolicy(engine.module, outline, temperature),
            method=config.method,
            corruptor=Corruptor(outline.encoder, corruption_of(config), config.train.seed),
            outline=outline,
            dtype=getattr(torch, config.model.dtype),
            reference_engine=reference_engine,
            reference=(
                None
                if reference_engine is None
                else ShardedPolicy(reference_engine.module, outline, temperature)
            ),
        )

    @torch.no_grad()
    def score(self, job: ScoreJob) -> list[ResponseStatistics]:
        """One result a piece."""
        engine, policy = (
            (self.reference_engine, self.reference) if job.of_reference else (self.engine, self.policy)
        )
        assert policy is not None, "the method needs no reference model"
        policy.always_see = job.images
        with engine.eval_mode():
            with_entropy = job.view != "corrupted"
            found = [
                self._statistics(policy, piece, job.view, job.step, with_entropy) for piece in job.pieces
            ]
            policy.let_go()
        return [_on_cpu(statistics) for statistics in found]

    def update(self, job: UpdateJob) -> RankUpdate:
        """Gradients of all pieces, then verl's own clipping and optimizer step; none where a loss is not finite."""
        engine, last = self.engine, len(job.pieces) - 1
        terms: dict[str, float] = defaultdict(float)
        broken: list[str] = []
        self.policy.always_see = job.images
        with engine.train_mode():
            for group in engine.optimizer.param_groups:
                group["lr"] = job.lr
            engine.optimizer_zero_grad()
            for number, piece in enumerate(job.pieces):
                with engine._gradient_sync_context(is_last_micro_batch=number == last):
                    loss, values = objective(self.method, self._forward(piece), job.totals)
                    # FSDP2 takes the mean of the ranks' gradients; the loss is a share of a global sum.
                    (loss * distributed.get_world_size() * float(piece.counts)).backward()
                if piece.counts:
                    _add(terms, {"total": loss.detach(), **values})
                    broken += [] if bool(torch.isfinite(loss)) else [prompt.id for prompt in piece.prompts]
            norm = math.nan if _anywhere(bool(broken)) else float(engine.optimizer_step())
        return RankUpdate(dict(terms), norm, tuple(dict.fromkeys(broken)))

    def nonfinite_weights(self) -> list[str]:
        """In this rank's shards."""
        shards = {
            n: p.to_local() if isinstance(p, DTensor) else p for n, p in self.policy.model.named_parameters()
        }
        return [name for name, shard in shards.items() if not bool(torch.isfinite(shard).all())]

    def export(self, folder: Path) -> None:
        """Gathered weight by weight, in the type that the model computes in; the first rank writes them."""
        first = distributed.get_rank() == 0
        weights: dict[str, Tensor] = {}
        for name, weight in self.policy.model.state_dict().items():
            whole = _gathered(weight)
            if first:
                weights[name] = whole.detach().to("cpu", self.dtype, copy=True)
        if first:
            save_outline(self.outline, weights, folder)
        distributed.barrier()

    def _forward(self, piece: Piece) -> Batch:
        """The rows from the driver with their forward pass."""
        found = self._statistics(self.policy, piece, "clean", 0, self.method.needs_entropy)
        assert piece.batch is not None
        return piece.batch.with_forward(found.logprobs_BT, found.entropy_BT)

    def _statistics(
        self, policy: ShardedPolicy, piece: Piece, view: View, step: int, with_entropy: bool
    ) -> ResponseStatistics:
        encode = policy.encoder.encode
        units = [
            PromptWithResponses(encode(p), list(ys))
            for p, ys in zip(piece.prompts, piece.responses, strict=True)
        ]
        clean = [unit.prompt for unit in units]
        damaged = [self.corruptor.corrupt(prompt, step) for prompt in clean] if view != "clean" else None
        kept: list[ResponseStatistics] = []

        def work() -> tuple[Tensor, ...]:
            corrupted = None if damaged is None else policy.features(damaged, "corrupted")
            if view == "corrupted":
                assert corrupted is not None
                shown, corrupted = corrupted, None
            else:
                shown = policy.features(clean)
            kept.append(
                policy.score(
                    units,
                    shown,
                    layout=piece.layout,
                    corrupted_features=corrupted,
                    with_entropy=with_entropy,
                )
            )
            # FSDP2 finds its way back through what is returned, and through nothing else.
            return kept[0].logprobs_BT, kept[0].entropy_BT

        logprobs_BT, entropy_BT = policy.together(work)
        return replace(kept[0], logprobs_BT=logprobs_BT, entropy_BT=entropy_BT)


def _add(terms: dict[str, float], values: dict[str, Tensor]) -> None:
    for name, value in values.items():
        terms[name] = max(terms[name], float(value)) if name in MAXIMA else terms[name] + float(value)


def _gathered(weight: Any) -> Tensor:
    """The whole of a shard; between steps verl may have moved it to the CPU, out of NCCL's reach."""
    if not isinstance(weight, DTensor):
        return weight
    device: Any = torch.cuda.current_device() if torch.cuda.is_available() else "cpu"
    moved: Any = weight.to(device)
    return moved.full_tensor()


def _anywhere(flag: bool) -> bool:
    """Whether it is so on any rank."""
    found = torch.tensor(float(flag))
    distributed.all_reduce(found, distributed.ReduceOp.MAX)
    return bool(found)


def _on_cpu(found: ResponseStatistics) -> ResponseStatistics:
    return replace(found, **{name: v.cpu() for name, v in vars(found).items() if v is not None})
