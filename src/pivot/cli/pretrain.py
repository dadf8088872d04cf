"""`pivot pretrain`: trains the tiny starting checkpoints from scratch and measures them."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from pivot import tiny
from pivot.console import Console
from pivot.errors import UserError
from pivot.models.corruption import Corruption, Corruptor
from pivot.models.loading import load_policy
from pivot.models.policy import Policy
from pivot.sampling import Sampling, sample_responses
from pivot.tiny import figures
from pivot.tiny.model import save
from pivot.tiny.pretrain import SKILL_STEPS, Plan, pretrain
from pivot.tiny.procedural.canvas import SIZE
from pivot.tiny.tokenizer import build_tokenizer
from pivot.types import Prompt

FIGURES_FILE = "figures.json"
MAX_TOKENS = 96


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--start", choices=(*tiny.STARTS, "all"), default="all", help="which checkpoint to train"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("tiny-checkpoints"),
        help="folder for the checkpoints and figures.json (%(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="random seed; the shipped checkpoints have %(default)s"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=SKILL_STEPS,
        help="steps of the first phase; the second phase is proportional (%(default)s)",
    )
    parser.add_argument(
        "--batch-size", type=int, default=Plan().batch_size, help="examples per step (%(default)s)"
    )
    parser.add_argument(
        "--figures-only",
        action="store_true",
        help="only measure the shipped checkpoints (or the one in --model)",
    )
    parser.add_argument("--model", type=Path, help="with --figures-only: the folder of another checkpoint")
    parser.add_argument(
        "--prompts",
        type=int,
        default=figures.DEFAULT_PROMPTS,
        help="prompts per column of the table (%(default)s)",
    )
    parser.add_argument(
        "--samples", type=int, default=figures.DEFAULT_SAMPLES, help="samples per prompt (%(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    for name in ("steps", "batch_size", "prompts", "samples"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} is {getattr(args, name)}; expected 1 or more")
    console = Console()
    starts = tiny.STARTS if args.start == "all" else (args.start,)
    # Below two million parameters one thread is faster than two, and sums are the same on every machine.
    torch.set_num_threads(1)
    if args.figures_only:
        folders = (
            {"model": args.model} if args.model else {start: tiny.checkpoint_path(start) for start in starts}
        )
    else:
        folders = _train(starts, args, console)
    measured = {}
    for name in sorted(folders):
        measured[name] = measure(folders[name], args.prompts, args.samples)
        console.print(f"\n{name}, {args.samples} samples per prompt, temperature 1, per cent", style="bold")
        console.print(figures.markdown(measured[name]["conditions"]), soft_wrap=True)
    if not args.figures_only:
        (args.out / FIGURES_FILE).write_text(json.dumps(measured, indent=1) + "\n")
        console.print(f"\ncheckpoints and {FIGURES_FILE} are in {args.out}")
    return 0


def _train(starts: Sequence[str], args: argparse.Namespace, console: Console) -> dict[str, Path]:
    plan = replace(Plan(), skill_steps=args.steps, batch_size=args.batch_size, seed=args.seed)
    tokenizer = build_tokenizer()
    folders: dict[str, Path] = {}
    began = time.monotonic()
    with _progress(console) as bar:
        task = bar.add_task("skill", total=plan.num_steps(starts), loss=float("nan"))

        def report(phase: str, loss: float) -> None:
            bar.update(task, advance=1, description=phase, loss=loss)

        for name, model in pretrain(tokenizer, starts, plan, report):
            folders[name] = args.out / name
            save(model, tokenizer, folders[name])
    console.print(f"trained in {(time.monotonic() - began) / 60:.1f} minutes")
    return folders


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    )


def measure(
    folder: Path,
    num_prompts: int,
    num_samples: int,
    conditions: Sequence[figures.Condition] = figures.CONDITIONS,
) -> dict[str, Any]:
    """Sampled figures of a checkpoint's folder: {"samples": ..., "conditions": {...}}."""
    policy = load_policy(str(folder))
    sampler = _Sampler(policy, num_samples)
    return {"samples": num_samples, "conditions": figures.measure(sampler, num_prompts, conditions)}


@dataclass(frozen=True)
class _Paper:
    """A white image instead of the prompt's own."""

    def open(self) -> Image.Image:
        return Image.new("RGB", (SIZE, SIZE), "white")


class _Sampler:
    """Sampled responses of a policy, with one of the three views of the images."""

    def __init__(self, policy: Policy, num_samples: int) -> None:
        self._policy, self._num_samples = policy, num_samples
        self._corruptor = Corruptor(policy.encoder, Corruption(kind="patch", probability=0.6), seed=0)

    def __call__(self, prompts: Sequence[Prompt], view: figures.View) -> list[list[str]]:
        if view == "blank":
            prompts = [replace(prompt, images=(_Paper(),)) for prompt in prompts]
        encoded = [self._policy.encoder.encode(prompt) for prompt in prompts]
        if view == "masked":
            encoded = [self._corruptor.corrupt(prompt, step=0) for prompt in encoded]
        # Features are cached by prompt id, which the views of a prompt share.
        self._policy.forget_features()
        sampled = sample_responses(
            self._policy, encoded, self._num_samples, Sampling(max_tokens=MAX_TOKENS), key=("figures", view)
        )
        texts = {index: [response.text for response in responses] for index, responses in sampled}
        return [texts[index] for index in range(len(prompts))]
