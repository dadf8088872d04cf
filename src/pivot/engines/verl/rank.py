"""One rank: the forwards of Eq. 4, 5, 10 and the update of Eq. 16, on verl's FSDP2 engine and with the functions of
`pivot.method`.

FSDP2 gathers weights in the hooks of a module's call. `ShardedPolicy.gathered` calls the whole model with a function in
place of its inputs: inside it, everything that `Policy` does with parts of the model works as on whole weights.
"""

from __future__ import annotations

import math
import types
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from peft import PeftModel
from torch import Tensor, distributed
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from pivot.config import Config
from pivot.durable import hash_files, sync_tree
from pivot.engines import shards
from pivot.engines.base import View, add_terms
from pivot.engines.jobs import Piece, RankUpdate, ScoreJob, UpdateJob
from pivot.engines.saving import Checksums, in_background
from pivot.engines.scoring import with_prompts
from pivot.engines.settings import corruption_of, logprob_temperature
from pivot.method import Batch, Method, objective
from pivot.models.corruption import Corruptor
from pivot.models.family import EncodedPrompt, ImageFeatures
from pivot.models.loading import prepare_forward, save_with_weights
from pivot.models.policy import Policy, ResponseStatistics
from pivot.models.products import prepare_products
from pivot.models.rows import PromptWithResponses

Work = Callable[[], tuple[Tensor, ...]]
AHEAD = 2
"""Micro-batches whose images are processed before their turn."""


@dataclass(frozen=True)
class Wanted:
    """What a pass over a piece computes."""

    view: View
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
    """Where adapters are trained, the policy itself without them."""

    @classmethod
    def build(cls, config: Config, tokenizer_only: Policy, engine: Any, reference_engine: Any = None) -> Rank:
        """From engines that verl has initialised."""
        temperature = logprob_temperature(config)
        policy = ShardedPolicy(engine.module, tokenizer_only, temperature)
        if config.model.freeze_vision:
            policy.freeze_vision()
        reference = None
        if reference_engine is not None:
            reference = ShardedPolicy(reference_engine.module, tokenizer_only, temperature)
        elif config.model.lora_rank:
            reference_engine, reference = engine, policy
        return cls(
            engine=engine,
            policy=policy,
            method=config.method,
            corruptor=Corruptor(tokenizer_only.encoder, corruption_of(config), config.train.seed),
            tokenizer_only=tokenizer_only,
            dtype=getattr(torch, config.model.dtype),
            reference_engine=reference_engine,
            reference=reference,
        )

    @torch.no_grad()
    def score(self, job: ScoreJob) -> list[ResponseStatistics]:
        """One result per piece."""
        engine, policy = (
            (self.reference_engine, self.reference) if job.of_reference else (self.engine, self.policy)
        )
        assert policy is not None, "the method has no reference model"
        policy.always_encode = job.images
        with engine.eval_mode(), policy.adapters(enabled=not job.of_reference):
            wanted = Wanted(job.view, job.view != "corrupted", job.with_similarity)
            found = [
                self._statistics(policy, inputs, wanted)
                for inputs in self._inputs(job.pieces, job.view, job.step)
            ]
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
            for number, inputs in enumerate(self._inputs(job.pieces)):
                piece = inputs.piece
                with engine._gradient_sync_context(is_last_micro_batch=number == last):
                    loss, values = objective(self.method, self._forward(inputs), job.totals)
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

    @torch.no_grad()
    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The weights of the plain model one by one, whole and in the dtype of its compute; adapters are merged in.

        Every rank must iterate: each weight is gathered from all of them.
        """
        modules = dict(self.policy.model.named_modules())
        for name, weight in self.policy.model.state_dict().items():
            if ".lora_" in name:
                continue
            whole = _gathered(weight)
            if name.endswith(".base_layer.weight"):
                layer: Any = modules[name.removesuffix(".base_layer.weight")]
                (adapter,) = layer.lora_A
                up, down = _gathered(layer.lora_B[adapter].weight), _gathered(layer.lora_A[adapter].weight)
                whole = whole + up @ down * layer.scaling[adapter]
            yield name.replace(".base_layer.", "."), whole.detach().to(self.dtype)

    def save(self, folder: Path) -> Future[Checksums]:
        """Copy shards and, on the first rank, the whole model to the CPU, then write them in the background.

        Only the copying waits for other ranks, and never for a disk.
        """
        number = distributed.get_rank()
        copies, offsets = shards.snapshot(self.policy.model, self.engine.optimizer, number)
        weights = self.whole_weights()

        def write() -> Checksums:
            path = folder / shards.FOLDER / shards.file_name(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            shards.write(path, copies, offsets)
            written = [path]
            if weights:
                save_with_weights(self.tokenizer_only, weights, folder / "model")
                written += sorted(file for file in (folder / "model").rglob("*") if file.is_file())
                sync_tree(folder / "model")
            return {
                file.relative_to(folder).as_posix(): digest for file, digest in hash_files(written).items()
            }

        return in_background(write)

    def load(self, folder: Path) -> None:
        """From the shards of any number of ranks; no rank waits for another."""
        engine = self.engine
        shards.load(folder / shards.FOLDER, self.policy.model, engine.optimizer)
        if engine._is_offload_optimizer:
            from verl.utils.fsdp_utils import offload_fsdp_optimizer

            offload_fsdp_optimizer(engine.optimizer)

    def whole_weights(self) -> dict[str, Tensor]:
        """All weights on the CPU; empty except on the first rank, which writes them."""
        first = distributed.get_rank() == 0
        weights: dict[str, Tensor] = {}
        for name, whole in self.weights():
            if first:
                weights[name] = whole.to("cpu", copy=True)
        return weights

    def _inputs(self, pieces: Sequence[Piece], view: View = "clean", step: int = 0) -> Iterator[Inputs]:
        """The pieces in their order; a thread decodes, processes and corrupts images ahead of the forward passes."""
        # A new thread would start with as many threads as there are cores, and round differently.
        same = {"initializer": torch.set_num_threads, "initargs": (torch.get_num_threads(),)}
        with ThreadPoolExecutor(max_workers=1, **same) as pool:
            waiting = deque()
            for piece in pieces:
                waiting.append(pool.submit(self._read, piece, view, step))
                if len(waiting) > AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def _read(self, piece: Piece, view: View, step: int) -> Inputs:
        encoder = self.tokenizer_only.encoder
        encoder.read_images(piece.prompts)
        prompts = [encoder.encode(prompt) for prompt in piece.prompts]
        damaged = [self.corruptor.corrupt(p, step) for p in prompts] if view != "clean" else None
        units = [PromptWithResponses(p, ys) for p, ys in zip(prompts, piece.responses, strict=True)]
        return Inputs(piece, units, damaged)

    def _forward(self, inputs: Inputs) -> Batch:
        """The rows from the driver with their forward pass."""
        found = self._statistics(self.policy, inputs, Wanted("clean", self.method.needs_entropy))
        assert inputs.piece.batch is not None
        return inputs.piece.batch.with_forward(found.logprobs_BT, found.entropy_BT)

    def _statistics(self, policy: ShardedPolicy, inputs: Inputs, wanted: Wanted) -> ResponseStatistics:
        units, damaged, layout = inputs.units, inputs.damaged, inputs.piece.layout
        hidden = None
        if damaged is not None and self.corruptor.corruption.hidden:
            hidden = with_prompts(units, damaged)
        kept: list[ResponseStatistics] = []

        def work() -> tuple[Tensor, ...]:
            corrupted = None if damaged is None else policy.features(damaged, "corrupted")
            if wanted.view == "corrupted":
                assert corrupted is not None
                kept.append(
                    policy.score(hidden or units, corrupted, layout=layout, with_entropy=wanted.entropy)
                )
            else:
                kept.append(
                    policy.score(
                        units,
                        policy.features([unit.prompt for unit in units]),
                        layout=layout,
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


@dataclass(frozen=True)
class Inputs:
    """A piece whose prompts are encoded."""

    piece: Piece
    units: list[PromptWithResponses[EncodedPrompt]]
    damaged: list[EncodedPrompt] | None
    """The prompts with corrupted images, where the view needs them."""


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
        # peft wraps the model that it adds adapters to; FSDP2's outermost hooks are on the wrapper.
        plain: Any = module.get_base_model() if isinstance(module, PeftModel) else module
        super().__init__(plain, tokenizer_only.tokenizer, tokenizer_only.encoder)
        self.temperature, self._root = temperature, module
        prepare_forward(plain)
        if plain.device.type == "cpu":
            prepare_products(plain)
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
        return self._root(work)

    def release(self) -> None:
        """Free gathered weights, which an optimizer step or a checkpoint would make stale."""
        for module in self._root.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def freeze_vision(self) -> None:
        """Before the first forward pass: FSDP2 then asks each shard whether it needs a gradient."""
        for parameter in self.family.vision_parameters(self.model):
            parameter.requires_grad_(False)

    @contextmanager
    def adapters(self, *, enabled: bool) -> Iterator[None]:
        """Low-rank adapters, where there are any, on or off within the block.

        peft's own switch also stops their gradients, and FSDP2 would remember that.
        """
        layers: list[Any] = [m for m in self.model.modules() if "lora_A" in m._modules]
        for layer in layers:
            layer._disable_adapters = not enabled
        try:
            yield
        finally:
            for layer in layers:
                layer._disable_adapters = False

    def features(
        self, prompts: Sequence[EncodedPrompt], view: Literal["clean", "corrupted"] = "clean"
    ) -> list[list[ImageFeatures]]:
        """Never cached: a cache hit on one rank alone would put the ranks out of step."""
        trained = any(p.requires_grad for p in self.family.vision_parameters(self.model))
        with torch.set_grad_enabled(torch.is_grad_enabled() and trained):
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
