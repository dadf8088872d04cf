"""One rank: the forwards of Eq. 4, 5, 10 and the update of Eq. 16, on verl's FSDP2 engine and with the functions of
`pivot.method`.

FSDP2 gathers weights in the hooks of a module's call. `ShardedPolicy.gathered` calls the whole model with a function in
place of its inputs: inside it, everything that `Policy` does with parts of the model works as on whole weights.
"""

from __future__ import annotations

import math
import types
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, distributed
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from pivot.config import Config
from pivot.engines.base import View, add_terms
from pivot.engines.jobs import Piece, RankUpdate, ScoreJob, UpdateJob
from pivot.engines.scoring import with_prompts
from pivot.engines.settings import corruption_of, logprob_temperature
from pivot.method import Batch, Method, objective
from pivot.models.corruption import Corruptor
from pivot.models.family import EncodedPrompt, ImageFeatures
from pivot.models.loading import prepare_forward, save_with_weights
from pivot.models.policy import Policy, ResponseStatistics
from pivot.models.rows import PromptWithResponses

Work = Callable[[], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Wanted:
    """What a pass over a piece computes."""

    view: View
    step: int
    entropy: bool
    similarity: bool = False


@dataclass
class Rank:
    """The model of one rank, and the frozen one it started from where the method compares with it."""

    engine: Any
    """verl's FSDPEngine: module, optimizer, modes, offloading, clipping."""
    policy: ShardedPolicy
    method: Method
    corruptor: Corruptor
    tokenizer_only: Policy
    """Encodes and decodes; has no weights."""
    dtype: torch.dtype = torch.float32
    """Of an exported model."""
    reference_engine: Any = None
    reference: ShardedPolicy | None = None

    @classmethod
    def build(cls, config: Config, tokenizer_only: Policy, engine: Any, reference_engine: Any = None) -> Rank:
        """From engines that verl has initialised."""
        temperature = logprob_temperature(config)
        return cls(
            engine=engine,
            policy=ShardedPolicy(engine.module, tokenizer_only, temperature),
            method=config.method,
            corruptor=Corruptor(tokenizer_only.encoder, corruption_of(config), config.train.seed),
            tokenizer_only=tokenizer_only,
            dtype=getattr(torch, config.model.dtype),
            reference_engine=reference_engine,
            reference=(
                None
                if reference_engine is None
                else ShardedPolicy(reference_engine.module, tokenizer_only, temperature)
            ),
        )

    @torch.no_grad()
    def score(self, job: ScoreJob) -> list[ResponseStatistics]:
        """One result per piece."""
        engine, policy = (
            (self.reference_engine, self.reference) if job.of_reference else (self.engine, self.policy)
        )
        assert policy is not None, "the method has no reference model"
        policy.always_encode = job.images
        with engine.eval_mode():
            wanted = Wanted(job.view, job.step, job.view != "corrupted", job.with_similarity)
            found = [self._statistics(policy, piece, wanted) for piece in job.pieces]
            policy.release()
        return [_on_cpu(statistics) for statistics in found]

    def update(self, job: UpdateJob) -> RankUpdate:
        """Gradients of all pieces, then verl's own clipping and optimizer step; no step if a loss is not finite."""
        engine, last = self.engine, len(job.pieces) - 1
        terms: dict[str, float] = defaultdict(float)
        broken: list[str] = []
        self.policy.always_encode = job.images
        with engine.train_mode():
            for group in engine.optimizer.param_groups:
                group["lr"] = job.lr
            engine.optimizer_zero_grad()
            for number, piece in enumerate(job.pieces):
                with engine._gradient_sync_context(is_last_micro_batch=number == last):
                    loss, values = objective(self.method, self._forward(piece), job.totals)
                    # FSDP2 averages the ranks' gradients; the loss is a share of a global sum.
                    (loss * distributed.get_world_size() * float(piece.counts)).backward()
                if piece.counts:
                    add_terms(terms, {"total": loss.detach(), **values})
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
        """Gather the weights one by one, in the dtype of the model's compute; the first rank writes them."""
        first = distributed.get_rank() == 0
        weights: dict[str, Tensor] = {}
        for name, weight in self.policy.model.state_dict().items():
            whole = _gathered(weight)
            if first:
                weights[name] = whole.detach().to("cpu", self.dtype, copy=True)
        if first:
            save_with_weights(self.tokenizer_only, weights, folder)
        distributed.barrier()

    def _forward(self, piece: Piece) -> Batch:
        """The rows from the driver with their forward pass."""
        wanted = Wanted("clean", 0, self.method.needs_entropy)
        found = self._statistics(self.policy, piece, wanted)
        assert piece.batch is not None
        return piece.batch.with_forward(found.logprobs_BT, found.entropy_BT)

    def _statistics(self, policy: ShardedPolicy, piece: Piece, wanted: Wanted) -> ResponseStatistics:
        encode = policy.encoder.encode
        units = [
            PromptWithResponses(encode(p), list(ys))
            for p, ys in zip(piece.prompts, piece.responses, strict=True)
        ]
        clean = [unit.prompt for unit in units]
        damaged = None
        if wanted.view != "clean":
            damaged = [self.corruptor.corrupt(prompt, wanted.step) for prompt in clean]
        hidden = None
        if damaged is not None and self.corruptor.corruption.hidden:
            hidden = with_prompts(units, damaged)
        kept: list[ResponseStatistics] = []

        def work() -> tuple[Tensor, ...]:
            corrupted = None if damaged is None else policy.features(damaged, "corrupted")
            if wanted.view == "corrupted":
                assert corrupted is not None
                kept.append(
                    policy.score(
                        hidden or units,
                        corrupted,
                        layout=piece.layout,
                        with_entropy=wanted.entropy,
                    )
                )
            else:
                kept.append(
                    policy.score(
                        units,
                        policy.features(clean),
                        layout=piece.layout,
                        corrupted_features=corrupted,
                        corrupted_units=hidden,
                        with_entropy=wanted.entropy,
                        with_similarity=wanted.similarity,
                    )
                )
            # FSDP2 runs its backward hooks on what is returned, and on nothing else.
            return kept[0].logprobs_BT, kept[0].entropy_BT

        logprobs_BT, entropy_BT = policy.gathered(work)
        return replace(kept[0], logprobs_BT=logprobs_BT, entropy_BT=entropy_BT)


def _gathered(weight: Any) -> Tensor:
    """The whole tensor of a shard, which verl may have moved to the CPU, out of NCCL's reach."""
    if not isinstance(weight, DTensor):
        return weight
    device: Any = torch.cuda.current_device() if torch.cuda.is_available() else "cpu"
    moved: Any = weight.to(device)
    return moved.full_tensor()


def _anywhere(flag: bool) -> bool:
    """Whether the flag is set on any rank."""
    found = torch.tensor(float(flag))
    distributed.all_reduce(found, distributed.ReduceOp.MAX)
    return bool(found)


def _on_cpu(found: ResponseStatistics) -> ResponseStatistics:
    return replace(found, **{name: v.cpu() for name, v in vars(found).items() if v is not None})


class ShardedPolicy(Policy):
    """A policy whose weights verl holds in FSDP2 shards; every rank must call it equally often."""

    def __init__(self, module: Any, tokenizer_only: Policy, temperature: float = 1.0) -> None:
        super().__init__(module, tokenizer_only.tokenizer, tokenizer_only.encoder)
        self.temperature = temperature
        prepare_forward(module)
        module.forward = types.MethodType(_call, module)
        self.always_encode = False
        """Whether rows without an image enter the vision tower too, because other ranks do."""
        self._blank: Tensor | None = None

    def gathered(self, work: Work) -> tuple[Tensor, ...]:
        """The result of `work`, called with gathered weights."""
        head = self.model.get_output_embeddings()
        if isinstance(head, FSDPModule):
            head.unshard()  # its weight is used without calling the module
        self._blank = None
        return self.model(work)

    def release(self) -> None:
        """Free gathered weights, which an optimizer step or a checkpoint would make stale."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def features(
        self, prompts: Sequence[EncodedPrompt], view: Literal["clean", "corrupted"] = "clean"
    ) -> list[list[ImageFeatures]]:
        """Never cached: a cache hit on one rank alone would put the ranks out of step."""
        if self.always_encode and not any(prompt.images for prompt in prompts):
            (blank,) = self._encode([prompts[0].with_images((self.family.blank_image(),))])
            self._blank = _zero_of(blank[0])
        return self._encode(prompts)

    def embed(self, input_ids_RL: Tensor, features_R: Sequence[Sequence[ImageFeatures]]) -> dict[str, Any]:
        """As in `Policy`; a blank image adds zero, so that gradients reach the vision tower on every rank."""
        inputs = super().embed(input_ids_RL, features_R)
        if self._blank is not None:
            embeds = inputs["inputs_embeds"]
            assert isinstance(embeds, Tensor)
            inputs["inputs_embeds"] = embeds + self._blank.to(embeds.dtype)
        return inputs


def _call(_: Any, work: Work) -> tuple[Tensor, ...]:
    return work()


def _zero_of(image: ImageFeatures) -> Tensor:
    """Zero, with a gradient path to everything that produced the features."""
    return 0.0 * torch.stack([part.float().sum() for part in image.tensors]).sum()
