"""The engine of one process: the policy, the reference model and the optimizer on one device."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from pivot.config import Config
from pivot.engines.ahead import ScoreAhead
from pivot.engines.base import (
    ScoreRequest,
    Skipped,
    Update,
    add_terms,
)
from pivot.engines.continued import ScoreContinued
from pivot.engines.optimizer import MasterAdamW
from pivot.engines.packing import MicroBatch, row_indices, select
from pivot.engines.scoring import Scorer
from pivot.engines.settings import (
    corruption_of,
    logprob_temperature,
    model_options,
    packing_of,
    sampler_logprobs,
)
from pivot.engines.tensor_file import load_tensors, save_tensors
from pivot.errors import UserError
from pivot.method import Batch, count_totals, objective
from pivot.models.activations import ActivationBudget
from pivot.models.continued import can_continue
from pivot.models.corruption import Corruptor
from pivot.models.encoding import EncodedPrompt
from pivot.models.loading import load_policy, save_policy
from pivot.models.memory import release_free_memory, within_memory
from pivot.models.policy import Policy, ResponseStatistics
from pivot.models.rows import PromptWithResponses
from pivot.models.weights import check_saved, find_nonfinite
from pivot.sampling import NativeSampler, PolicySampler, SampleRequest, choose_sampler
from pivot.types import PreparedPrompt, Prompt, Response

SMALL_MODEL = 5_000_000
"""Below this many weights one thread is faster than two."""
LARGE_MODEL = 100_000_000
"""From this many weights on, freed memory is worth returning to the machine after each phase."""
ADAPTERS = "adapters.safetensors"
OPTIMIZER = "optimizer.safetensors"


class LocalEngine:
    """`base.Engine` in this process, on a CPU or one GPU."""

    name = "local"

    def __init__(self, config: Config, policy: Policy, reference: Policy | None = None) -> None:
        self.policy, self.method = policy, config.method
        self.encoder = policy.encoder
        self.corruptor = Corruptor(policy.encoder, corruption_of(config), config.train.seed)
        self.packing = packing_of(config, policy.family)
        self.activations = None
        if config.train.kept_activations:
            kept = round(config.train.kept_activations * 2**30)
            self.activations = ActivationBudget(policy.model, policy.family, kept)
        self.optimizer = build_optimizer(config, policy)
        self.scorer = Scorer(policy, self.corruptor, self.packing)
        self._reference = None if reference is None else Scorer(reference, self.corruptor, self.packing)
        self._grad_clip = config.train.grad_clip
        self._ahead = ScoreAhead(self.scorer.score)
        self._step: int | None = None
        # Last, so that vLLM finds the memory that training leaves.
        self.sampler = open_sampler(config, policy)
        # On a GPU both would wait for the same device.
        on_cpu = policy.device.type == "cpu"
        self._overlaps = config.train.overlap and on_cpu and self.sampler.name == "native"
        self._releases_memory = on_cpu and policy.num_parameters >= LARGE_MODEL

    @classmethod
    def open(cls, config: Config, checkpoint: Path | None = None) -> LocalEngine:
        """Load the models; the policy's weights come from `checkpoint` if one is given."""
        lora = bool(config.model.lora_rank)
        # Adapters are merged into a checkpoint's model: training continues from where they started, and `load`.
        policy = load_model(config, None if checkpoint is None or lora else str(checkpoint / "model"))
        reference = None
        if config.method.needs_reference:
            # Loaded again on resume, so that it needs no checkpoint.
            reference = load_model(config)
            reference.model.requires_grad_(False)
            reference.model.eval()
        return cls(config, policy, reference)

    @property
    def description(self) -> str:
        by = "" if self.sampler.name == "native" else ", sampled by vLLM"
        return f"{self.policy.num_parameters / 1e6:.1f}M weights{by}"

    @property
    def budgets(self) -> dict[str, int]:
        found = {"micro_batch_tokens": self.packing.micro_batch_tokens}
        if isinstance(self.sampler, NativeSampler):
            found["batch_tokens"] = self.sampler.batch_tokens
        return found

    def read_images(self, prompts: Sequence[Prompt]) -> None:
        self.encoder.read_images(prompts)

    def prepare(self, prompt: Prompt) -> EncodedPrompt:
        return self.encoder.encode(prompt)

    # Sampling ----------------------------------------------------------------------------------------------

    def sample(
        self,
        prompts: Sequence[PreparedPrompt],
        request: SampleRequest,
        meanwhile: Sequence[ScoreRequest] = (),
    ) -> list[list[Response]]:
        encoded = [_encoded(prompt) for prompt in prompts]
        for early in meanwhile:
            self._begin(early.step)
            self._encode_first(early)
        if not self._overlaps:
            request = replace(request, after_prefill=self._continued(meanwhile))
        with self._ahead.during(meanwhile if self._overlaps else ()):
            found = within_memory(
                lambda: dict(self.sampler.sample(encoded, request)), lambda: False, "sampling.memory_share"
            )
        self._release_memory()
        return [found[i] for i in range(len(prompts))]

    def _continued(self, meanwhile: Sequence[ScoreRequest]) -> ScoreContinued | None:
        """Scores what is asked for under the clean image while the prompts' keys and values are there."""
        clean = [early for early in meanwhile if early.view == "clean" and not early.with_similarity]
        if not clean or not can_continue(self.policy):
            return None

        def keep(units: Sequence[PromptWithResponses], found: ResponseStatistics) -> None:
            self._ahead.keep(replace(clean[0], units=units), found)

        units = [unit for early in clean for unit in early.units]
        return ScoreContinued(self.policy, units, self.packing.micro_batch_tokens, keep)

    def _encode_first(self, early: ScoreRequest) -> None:
        """Encode the images that both threads will need, so that chance does not decide which are encoded together.

        A product's last bits depend on how many rows it has.
        """
        if not self._overlaps or early.view == "corrupted":
            return
        with torch.no_grad():
            for micro in self.packing.plan(early.units):
                self.policy.features([_encoded(unit.prompt) for unit in select(early.units, micro)])

    def evaluation_sampler(self) -> PolicySampler:
        return self.sampler

    # Scoring -----------------------------------------------------------------------------------------------

    def score(self, request: ScoreRequest) -> ResponseStatistics:
        self.sampler.sleep()
        self._begin(request.step)
        if request.of_reference:
            assert self._reference is not None, "the method has no reference model"
            found = self._reference.score(request)
            self._reference.policy.forget_features()
            return found
        return self._ahead.score(request)

    def _begin(self, step: int) -> None:
        """Image features and early scores belong to one step: the next one has other corruption masks."""
        if step != self._step:
            self._step = step
            self._forget()

    def _forget(self) -> None:
        self.policy.forget_features()
        self._ahead.forget()

    # Updates -----------------------------------------------------------------------------------------------

    def update(self, units: Sequence[PromptWithResponses], batch: Batch, lr: float) -> Update:
        """Skips the step if the loss or the gradient is not finite."""
        self.sampler.sleep()
        self.optimizer.set_lr(lr)
        terms, broken = within_memory(
            partial(self._gradients, units, batch),
            partial(self._need_less, units),
            "train.micro_batch_tokens",
        )
        self._release_memory()
        norm = float(torch.nn.utils.clip_grad_norm_(self.optimizer.parameters, self._grad_clip))
        skipped = None
        if broken:
            skipped = Skipped("loss", broken)
        elif not math.isfinite(norm):
            skipped = Skipped("gradient", [unit.prompt.prompt.id for unit in units])
        else:
            self.optimizer.step()
            self._forget()
            self.sampler.weights_changed()
        self.optimizer.zero_grad()
        self._release_memory()
        return Update(terms, norm, skipped)

    def _gradients(
        self, units: Sequence[PromptWithResponses], batch: Batch
    ) -> tuple[dict[str, float], list[str]]:
        """Accumulate the gradients of a minibatch; its terms, and ids of prompts whose loss is not finite."""
        totals = count_totals(self.method, batch)
        terms: dict[str, float] = defaultdict(float)
        broken: list[str] = []
        self.optimizer.zero_grad()
        for micro in self.packing.plan(units):
            with self.policy.training():
                rows = self._forward(units, micro, batch)
                loss, values = objective(self.method, rows, totals)
                loss.backward()
            if not bool(torch.isfinite(loss.detach())):
                broken += [unit.prompt.prompt.id for unit in select(units, micro)]
            add_terms(terms, {"total": loss.detach(), **values})
        return dict(terms), list(dict.fromkeys(broken))

    def _need_less(self, units: Sequence[PromptWithResponses]) -> bool:
        """After running out of memory: recompute all activations, then halve the micro-batch."""
        kept = self.activations
        return (self.packing.may_halve and kept is not None and kept.give_up()) or self.packing.halve(units)

    def _forward(self, units: Sequence[PromptWithResponses], micro: MicroBatch, batch: Batch) -> Batch:
        chosen = select(units, micro)
        if self.activations is not None:
            encoded = [_encoded(unit.prompt) for unit in chosen]
            self.activations.spend(self.packing.cost(units, micro.parts), self.policy.num_patches(encoded))
        features = self.policy.features([_encoded(unit.prompt) for unit in chosen])
        exact = self.method.needs_entropy
        found = self.policy.score(chosen, features, layout=micro.layout, with_entropy=exact)
        rows = batch.select(row_indices(units, micro))
        return rows.with_forward(found.logprobs_BT, found.entropy_BT)

    def _release_memory(self) -> None:
        if self._releases_memory:
            release_free_memory()

    def nonfinite_weights(self) -> list[str]:
        return find_nonfinite(self.policy.model.named_parameters())

    # Checkpoints -------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """`model/`, the optimizer and, where there are any, the adapters that are merged into `model/`."""
        save_policy(self.policy, folder / "model")
        trained = self.policy.trainable_parameters()
        adapters = {name: p.detach() for name, p in trained.items() if ".lora_" in name}
        if adapters:
            save_tensors(folder / ADAPTERS, adapters)
        save_tensors(folder / OPTIMIZER, self.optimizer.state_dict())

    def load(self, folder: Path, budgets: Mapping[str, int]) -> None:
        """Optimizer and adapters; `open` has read the weights."""
        if (folder / ADAPTERS).exists():
            parameters = self.policy.trainable_parameters()
            adapters = load_tensors(folder / ADAPTERS)
            check_saved(folder / ADAPTERS, adapters, {n: p for n, p in parameters.items() if ".lora_" in n})
            with torch.no_grad():
                for name, value in adapters.items():
                    parameters[name].copy_(value)
        state = load_tensors(folder / OPTIMIZER)
        check_saved(folder / OPTIMIZER, *self.optimizer.tensors_of(state))
        try:
            self.optimizer.load_state_dict(state)
        except ValueError as mismatch:
            raise UserError(
                f"{folder / OPTIMIZER} does not fit the weights that the configuration trains ({mismatch})."
            ) from mismatch
        self.sampler.weights_changed()
        if budgets:
            self.packing.micro_batch_tokens = budgets["micro_batch_tokens"]
            if isinstance(self.sampler, NativeSampler):
                self.sampler.batch_tokens = budgets["batch_tokens"]

    def close(self) -> None:
        self.sampler.close()


def load_model(config: Config, path: str | None = None) -> Policy:
    """The policy of a run; the seed also fixes the initial low-rank adapters."""
    if config.train.deterministic:
        use_deterministic_kernels()
    torch.manual_seed(config.train.seed)
    policy = load_policy(path or config.model.path, model_options(config))
    policy.temperature = logprob_temperature(config)
    if config.train.threads is not None:
        torch.set_num_threads(config.train.threads)
    elif policy.num_parameters < SMALL_MODEL:
        torch.set_num_threads(1)
    return policy


def use_deterministic_kernels() -> None:
    """For the whole process, before anything runs on a GPU; operations without such a kernel warn."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)


def open_sampler(config: Config, policy: Policy) -> PolicySampler:
    """What samples from the policy, for training and evaluations."""
    if choose_sampler(config.sampling.engine, policy.device) == "native":
        most = config.rollout.batch_tokens
        return NativeSampler(policy, most, halve_on_oom=config.train.halve_on_oom)
    from pivot.sampling.vllm_sampler import PolicyVllm

    options, logprobs = model_options(config), sampler_logprobs(config)
    return PolicyVllm(policy, options, config.sampling.memory_share, logprobs)


def build_optimizer(config: Config, policy: Policy) -> MasterAdamW:
    train = config.train
    return MasterAdamW(
        policy.trainable_parameters().values(),
        lr=train.lr,
        betas=(train.adam_beta1, train.adam_beta2),
        weight_decay=train.weight_decay,
        kind=train.optimizer,
        offload=train.offload_optimizer,
    )


def _encoded(prompt: PreparedPrompt) -> EncodedPrompt:
    assert isinstance(prompt, EncodedPrompt), "prepared by this engine"
    return prompt
