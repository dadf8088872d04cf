"""One real PIVOT step of the full Qwen2.5-VL-3B configuration on a CPU: 36 layers, random bfloat16 weights, LoRA.

Nothing is downloaded. Every other response counts as right, because random weights solve nothing; all else is the
training step of the recipe geo3k-3b-lora on two prompts with a few tokens. Prints minutes per phase and peak memory.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForImageTextToText, AutoTokenizer, Qwen2VLImageProcessorPil
from transformers.initialization import no_init_weights

from pivot import recipes, tiny
from pivot.config import Config, apply_settings
from pivot.doctor import inspect_machine
from pivot.engines.local import LocalEngine
from pivot.engines.settings import model_options
from pivot.models.encoding import PromptEncoder
from pivot.models.family import find_family
from pivot.models.loading import load_tokenizer_only, prepare_for_training, prepare_forward
from pivot.models.policy import Policy
from pivot.models.qwen_vl import VISION_TOKENS, published_config
from pivot.training import build
from pivot.training.clock import PhaseClock
from pivot.training.prompts import training_prompts
from pivot.types import Prompt, Reward

SETTINGS = (
    "data.validation_size=1",
    "eval.every=0",
    "eval.final_prompts=0",
    "model.device=cpu",
    "model.max_pixels=100352",
    "rollout.responses=4",
    "rollout.max_tokens=16",
    "rollout.max_tries=1",
    "method.dynamic_sampling=false",
    "sampling.engine=native",
    "train.prompts_per_step=2",
    "train.minibatch_prompts=2",
    "train.overlap=false",
)
NEEDED = 14 * 2**30


POOL = 1_048_573
"""Random numbers that all weights repeat; a prime, so that no two rows of a matrix are equal."""


class EveryOther:
    """Half of each group is right."""

    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[Reward]:
        return [Reward(float(number % 2), 0.0, "every other") for number in range(len(responses))]

    def close(self) -> None: ...


def random_policy(config: Config, tokenizer_folder: Path | None) -> Policy:
    """The published sizes with weights drawn in place, in bfloat16 from the beginning."""
    sizes, text = published_config("3B"), load_tokenizer_only(tiny.checkpoint_path("easy"))
    tokenizer = (
        text.tokenizer if tokenizer_folder is None else AutoTokenizer.from_pretrained(tokenizer_folder)
    )
    if tokenizer_folder is None:
        for name in VISION_TOKENS:
            setattr(sizes, name, getattr(text.family.config, name))
    with no_init_weights():
        model = AutoModelForImageTextToText.from_config(
            sizes, dtype=torch.bfloat16, attn_implementation="sdpa"
        )
    model.tie_weights()
    fill_weights(model)
    prepare_forward(model)
    prepare_for_training(model, model_options(config), torch.device("cpu"))
    family, settings = find_family("qwen2_5_vl"), text.family.image_processor.to_dict()
    processor = Qwen2VLImageProcessorPil(
        **{**settings, "patch_size": 14, "merge_size": 2, "temporal_patch_size": 2}
    )
    family.limit_images(processor, config.model.min_pixels, config.model.max_pixels)
    return Policy(model, tokenizer, PromptEncoder(family(model, tokenizer, processor)))


@torch.no_grad()
def fill_weights(model: nn.Module) -> None:
    """N(0, 0.02) from a small pool; biases 0, norms 1. To draw billions of numbers would take minutes."""
    torch.manual_seed(0)
    pool = (0.02 * torch.randn(POOL)).bfloat16()
    for number, (name, parameter) in enumerate(model.named_parameters()):
        if name.endswith("bias"):
            parameter.zero_()
        elif parameter.ndim == 1:
            parameter.fill_(1.0)
        else:
            repeats = -(-parameter.numel() // POOL)
            values = pool.roll(number).repeat(repeats)[: parameter.numel()]
            parameter.copy_(values.view_as(parameter))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tokenizer", type=Path, help="folder of Qwen2.5's tokenizer; default: the tiny model's"
    )
    parser.add_argument(
        "--data", default="tiny", help="a data set with images, e.g. Geometry3K's train.parquet"
    )
    args = parser.parse_args()
    free = inspect_machine().memory.free_bytes
    if free < NEEDED:
        raise SystemExit(f"this needs {NEEDED / 2**30:.0f} GiB of free memory; {free / 2**30:.1f} are free")
    config = apply_settings(
        recipes.get("geo3k-3b-lora"), [*SETTINGS, f"data.train={args.data}", "data.size=16"]
    )
    start = time.monotonic()
    engine = LocalEngine(config, random_policy(config, args.tokenizer))
    print(
        f"{engine.policy.num_parameters / 1e9:.2f}B weights drawn in {time.monotonic() - start:.0f} s",
        flush=True,
    )
    clock = PhaseClock(on_change=lambda phase: print(f"  {phase or 'done'}", flush=True))
    trainer = build.build_trainer(config, engine, training_prompts(config).by_id, EveryOther(), clock)
    before = {name: p.detach().clone() for name, p in engine.policy.trainable_parameters().items()}
    outcome = trainer.step()
    assert outcome.update is not None
    moved = sum(not torch.equal(p, before[n]) for n, p in engine.policy.trainable_parameters().items())
    print({name: round(seconds / 60, 2) for name, seconds in clock.phases.items()}, "minutes")
    print(
        f"gradient norm {outcome.update.grad_norms}, {moved} of {len(before)} adapters moved; "
        f"{sum(len(g.prompt.images) for g in outcome.groups)} images, "
        f"{sum(len(r) for g in outcome.groups for r in g.responses)} response tokens"
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory {peak:.1f} GiB, {(time.monotonic() - start) / 60:.1f} minutes in all")


if __name__ == "__main__":
    main()
