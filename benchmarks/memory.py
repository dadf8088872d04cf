"""Peak memory of an update of the real 3B and 7B models, without their weights, beside `pivot doctor`'s estimate.

The project's own code runs on FakeTensors, which have shapes and no values: vision tower, tree rows, language model,
head, objective, backward, optimizer step. Every storage is counted from its creation to its release.
"""

from __future__ import annotations

import argparse
import dataclasses
import weakref
from collections.abc import Iterable
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForImageTextToText

from benchmarks.pretend_gpu import replace_tensors
from pivot import recipes, tiny
from pivot.config import Config, apply_settings
from pivot.doctor import estimate, find_architecture
from pivot.doctor.memory import micro_batch
from pivot.engines.local import LocalEngine
from pivot.engines.packing import MicroBatch, Part
from pivot.engines.settings import model_options
from pivot.method import Batch, Totals, count_totals, objective
from pivot.models import policy as policy_module
from pivot.models.encoding import PromptEncoder
from pivot.models.family import EncodedImage, EncodedPrompt, find_family
from pivot.models.loading import load_tokenizer_only, prepare_for_training, prepare_forward
from pivot.models.policy import Policy
from pivot.models.qwen_vl import published_config
from pivot.models.rows import PromptWithResponses, tree_rows
from pivot.models.shared_prefix import Segment, SharedPrefix
from pivot.types import Prompt

CASES = {
    "3B, all weights": ("3B", "geo3k-3b", ()),
    "3B, LoRA": ("3B", "geo3k-3b-lora", ()),
    "7B, all weights": ("7B", "geo3k-7b", ()),
    "7B, LoRA": ("7B", "geo3k-7b-lora", ()),
    "3B, vision frozen": ("3B", "geo3k-3b", ("model.freeze_vision=true",)),
}
"""Name -> size, recipe, settings."""


class Peak(TorchDispatchMode):
    """Bytes of all FakeTensors that are alive, and the most there ever were."""

    def __init__(self, held: Iterable[Tensor]) -> None:
        """`held`: those from before; views of them are nothing new."""
        super().__init__()
        self.now = self.most = 0
        self._alive: set[int] = set()
        for tensor in held:
            self._count(tensor.untyped_storage())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, FakeTensor):
                self._count(tensor.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._alive:
            self._alive.add(key)
            self.now += size
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._release, key, size)

    def _release(self, key: int, size: int) -> None:
        self._alive.discard(key)
        self.now -= size


class FakeUpdate:
    """The local engine with a model of FakeTensors that claim to be on `device`."""

    def __init__(self, size: str, config: Config, device: str = "cpu") -> None:
        self.config, self.mode = config, FakeTensorMode(allow_non_fake_inputs=True)
        self.device = torch.device(device)
        with torch.device("meta"):
            model = AutoModelForImageTextToText.from_config(
                published_config(size), dtype=getattr(torch, config.model.dtype), attn_implementation="sdpa"
            )
            prepare_forward(model)
            prepare_for_training(model, model_options(config), torch.device("meta"))
        replace_tensors(model, self.fake)
        text = load_tokenizer_only(tiny.checkpoint_path("easy"))
        family = find_family("qwen2_5_vl")(model, text.tokenizer, text.family.image_processor)
        self.engine = LocalEngine(config, Policy(model, text.tokenizer, PromptEncoder(family)))

    def fake(self, tensor: Tensor) -> Tensor:
        return FakeTensor(self.mode, tensor.to("meta"), self.device)

    def measure(self) -> dict[str, int]:
        """Peak bytes of a micro-batch and of the optimizer step, with the moments and gradients of those before."""
        optimizer, model = self.engine.optimizer, self.engine.policy.model
        masters = optimizer.state_dict()["masters"].values()
        with Peak((*model.parameters(), *model.buffers(), *masters)) as peak:
            self._earlier_gradients()
            optimizer.step()  # the first one creates the moments
            self._earlier_gradients()
            peak.most = peak.now
            self._gradients()
            update, peak.most = peak.most, peak.now
            optimizer.step()
        return {"update": update, "step": peak.most}

    def _earlier_gradients(self) -> None:
        for parameter in self.engine.optimizer.parameters:
            parameter.grad = torch.zeros_like(parameter)

    def _gradients(self) -> None:
        """`LocalEngine._gradients` on the fullest micro-batch, without reading the loss."""
        units = self.units()
        whole = MicroBatch(
            "tree", tuple(Part(i, tuple(range(len(u.responses)))) for i, u in enumerate(units))
        )
        batch, totals = make_batch(units, self.config)
        with (
            mock.patch.object(policy_module, "tree_rows", self._fake_rows),
            self.engine.policy.training(),
        ):
            loss, _ = objective(self.config.method, self.engine._forward(units, whole, batch), totals)
            loss.backward()

    def _fake_rows(self, units: Any) -> Any:
        rows = tree_rows(units)
        shared = rows.shared_prefix
        assert shared is not None
        segments = (
            Segment(
                self.fake(segment.response_BT),
                self.fake(segment.prompt_B),
                self.fake(segment.prompt_lengths_B),
                segment.longest_prompt,
            )
            for segment in shared.segments
        )
        fake = {name: self.fake(value) for name, value in vars(rows).items() if isinstance(value, Tensor)}
        prefix = SharedPrefix(
            self.fake(shared.prompt_PL),
            tuple(segments),
            self.fake(shared.result_M),
            self.fake(shared.seen_from_M3),
        )
        return dataclasses.replace(rows, **fake, shared_prefix=prefix)

    def units(self) -> list[PromptWithResponses]:
        """As many prompts as the micro-batch holds: one image each, and responses without a common beginning."""
        shape, family = (
            micro_batch(self.config, find_architecture(self.config.model.path)),
            self.engine.policy.family,
        )
        side = round((4 * shape.image_tokens) ** 0.5) // 2 * 2
        rows, columns = side, 4 * shape.image_tokens // side // 2 * 2
        units = []
        for number in range(shape.num_prompts):
            # Prompts of different lengths have attention masks of their own.
            ids = torch.randint(5, 1000, (shape.prompt_tokens - number,))
            ids[: rows * columns // 4] = family.image_token_id
            values = self.fake(torch.empty(rows * columns, 3, 1, 14 * 14, dtype=torch.uint8, device="meta"))
            prompt = Prompt(id=str(number), question="", answer="")
            image = EncodedImage(values, (1, rows, columns), family)
            positions = torch.arange(len(ids)).expand(3, -1)
            responses = [torch.randint(5, 1000, (shape.response_tokens,)) for _ in range(shape.responses)]
            units.append(
                PromptWithResponses(EncodedPrompt(prompt, ids, positions, len(ids), (image,)), responses)
            )
        return units


def make_batch(units: list[PromptWithResponses], config: Config) -> tuple[Batch, Totals]:
    """Rows of ones with every column that the methods need; only their shapes matter."""
    lengths = torch.tensor([len(y) for unit in units for y in unit.responses])
    ones_B, ones_BT = torch.ones(len(lengths)), torch.ones(len(lengths), int(lengths.max()))
    batch = Batch(
        mask_BT=torch.arange(ones_BT.shape[1]) < lengths[:, None],
        rewards_B=ones_B,
        format_B=ones_B,
        group_size=config.rollout.responses,
        clean_logprobs_BT=-ones_BT,
        entropy_BT=ones_BT,
        old_logprobs_BT=-ones_BT,
        corrupted_logprobs_BT=-ones_BT,
        reference_logprobs_BT=-ones_BT,
        anchor_logprob_B=-ones_B,
        advantage_BT=ones_BT,
        policy_mask_BT=ones_BT.bool(),
        group_advantage_B=ones_B,
    )
    return batch, count_totals(config.method, batch)


def compare(size: str, config: Config) -> tuple[dict[str, int], int]:
    """What FakeTensors say, and doctor's estimate of the same: one micro-batch, so without cached images."""
    model = find_architecture(config.model.path)
    found = estimate(config, model)
    items = tuple(item for item in found.items if item.name != "image features")
    return FakeUpdate(size, config).measure(), dataclasses.replace(found, items=items).training


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=CASES, action="append", help="by default all")
    for name in parser.parse_args().case or CASES:
        size, recipe, settings = CASES[name]
        measured, estimated = compare(size, apply_settings(recipes.get(recipe), settings))
        update, step = (measured[phase] / 2**30 for phase in ("update", "step"))
        ratio = estimated / max(measured.values())
        print(
            f"{name:<20} update {update:6.1f} GiB  optimizer step {step:6.1f} GiB  doctor {estimated / 2**30:6.1f} GiB "
            f"({ratio:.2f} of the peak)",
            flush=True,
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
