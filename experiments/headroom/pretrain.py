"""`python -m experiments.headroom.pretrain`: makes the start `small` and measures it.

Interrupted at any point, the same command continues from the last state that was saved, with the numbers of a run that
was never interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from experiments.headroom.panels import PanelProblem, habitual_response, problem, prompt, true_chain
from experiments.headroom.speed import SIZES, Size
from pivot.durable import write_bytes
from pivot.engines.tensor_file import load_tensors, save_tensors
from pivot.errors import UserError
from pivot.evaluation.sampling import evaluation_request, graded_samples
from pivot.models.loading import load_policy
from pivot.rewards.judge import VerifierJudge
from pivot.sampling import NativeSampler, Sampling
from pivot.tiny.examples import BATCHES_PER_POOL, Batch, Row, batches_of, make_row
from pivot.tiny.habits import Habits
from pivot.tiny.model import build_model, save
from pivot.tiny.pretrain import Phase, Plan
from pivot.tiny.procedural.canvas import SIZE
from pivot.tiny.tokenizer import build_tokenizer

Respond = Callable[[PanelProblem, random.Random], str]
STATE = "state.safetensors"
MAX_TOKENS = 256
TOLD_EVERY = 20
CONDITIONS = (("train", False), ("test", False), ("ood", False), ("test", True))
"""(split, whether the image is blank)."""


@dataclass(frozen=True)
class Part:
    """A phase: what is learned, and a learning rate for each step."""

    name: str
    respond: Respond
    rates: Sequence[float]
    weighted: bool
    """Whether digits are emphasised."""


@dataclass(frozen=True)
class SmallPlan:
    """How the start is made.

    Example:
        replace(SMALL, size=Size(256, 4, 2), habit_steps=60)
    """

    size: Size
    phases: Plan
    habit_steps: int
    habits: Habits
    save_minutes: float = 5.0

    @property
    def parts(self) -> tuple[Part, ...]:
        phases = self.phases
        rates = [phases.skill_rate(step) for step in range(phases.skill_steps)]
        return (
            Part("skill", true_chain, rates, weighted=True),
            Part(
                "habits",
                partial(habitual_response, habits=self.habits),
                [phases.habit_lr] * self.habit_steps,
                weighted=False,
            ),
        )


SMALL = SmallPlan(
    size=SIZES[0],
    phases=Plan(skill_steps=2200, skill_lr=1e-3),
    habit_steps=120,
    habits=Habits(guess_by_wording=(0.05, 0.15, 0.3), misperceive=0.12),
)


def pretrain(plan: SmallPlan, folder: Path, tell: Callable[[str], None]) -> Path:
    """Train both phases in `folder`, from the state that is there if there is one; returns the model's folder."""
    tokenizer, size = build_tokenizer(), plan.size
    model = build_model(
        tokenizer,
        hidden=size.hidden,
        layers=size.layers,
        vision_layers=size.vision_layers,
        seed=plan.phases.seed,
    )
    folder.mkdir(parents=True, exist_ok=True)
    state = _read_state(plan, folder / STATE)
    for number, part in enumerate(plan.parts):
        if number < state["phase"]:
            continue
        done = state["step"] if number == state["phase"] else 0
        seed = f"{part.name} {plan.phases.seed}"
        stream = batches_from(tokenizer, part.respond, plan.phases.batch_size, seed, done)
        phase = Phase(tokenizer, model, lambda *_: "", part.name, plan.phases, stream=stream)
        if number == state["phase"] and state["weights"] is not None:
            phase.load(state["weights"])
        for step in _run(phase, part, done, plan.save_minutes, tell):
            here = {"plan": _made_of(plan), "phase": number, "step": step, "weights": phase.state()}
            save_tensors(folder / STATE, here)
    save(model.eval(), tokenizer, folder / "small", largest=2 * SIZE)
    return folder / "small"


def _run(phase: Phase, part: Part, done: int, minutes: float, tell: Callable[[str], None]) -> Iterator[int]:
    """Train to the end of a phase; yields the number of finished steps whenever it should be saved."""
    losses: list[float] = []
    saved = time.monotonic()
    for step in range(done, len(part.rates)):
        phase.run([part.rates[step]], lambda _, loss: losses.append(loss), weighted=part.weighted)
        if (step + 1) % TOLD_EVERY == 0:
            tell(f"{part.name} {step + 1} of {len(part.rates)}: loss {sum(losses) / len(losses):.3f}")
            losses.clear()
        if step + 1 == len(part.rates) or time.monotonic() - saved > 60 * minutes:
            yield step + 1
            saved = time.monotonic()


def batches_from(
    tokenizer: PreTrainedTokenizerFast, respond: Respond, batch_size: int, seed: str, first: int
) -> Iterator[Batch]:
    """Endless batches from number `first` on; each pool has a seed of its own, so any of them can be begun with."""

    def draw(rng: random.Random) -> Row:
        found = problem("pretrain", rng.randrange(1 << 40))
        return make_row(tokenizer, found.picture, found.question, respond(found, rng))

    pool, skipped = divmod(first, BATCHES_PER_POOL)
    for number in count(pool):
        drawn = batches_of(draw, batch_size, random.Random(f"{seed} {number}"))
        yield from islice(drawn, skipped if number == pool else 0, BATCHES_PER_POOL)


def _read_state(plan: SmallPlan, path: Path) -> dict[str, Any]:
    if not path.exists():
        return {"phase": 0, "step": 0, "weights": None}
    state = load_tensors(path)
    if state["plan"] != _made_of(plan):
        raise UserError(f"{path} was made by other settings ({state['plan']}): choose another --out.")
    return state


def _made_of(plan: SmallPlan) -> str:
    """What decides the weights."""
    return repr(replace(plan, save_minutes=0.0))


def measure(
    folder: Path,
    num_prompts: int,
    num_samples: int,
    conditions: Sequence[tuple[str, bool]] = CONDITIONS,
) -> dict[str, Any]:
    """Sampled accuracy of a model's folder: overall, by level, and how many prompts have both kinds of responses."""
    policy, judge = load_policy(str(folder)), VerifierJudge("pivot", 1)
    found = {}
    for split, blank in conditions:
        prompts = [prompt(split, index) for index in range(num_prompts)]
        request = evaluation_request(num_samples, Sampling(max_tokens=MAX_TOKENS), blank=blank)
        graded = list(graded_samples(NativeSampler(policy), prompts, judge, request))
        policy.forget_features()
        rates = {g.prompt.id: sum(r.correct for r in g.responses) / num_samples for g in graded}
        lengths = [len(response) for g in graded for response in g.responses]
        levels: dict[str, list[float]] = {}
        for one in prompts:
            levels.setdefault(str(one.columns["level"]), []).append(rates[one.id])
        found["blank" if blank else split] = {
            "prompts": num_prompts,
            "accuracy": _mean(list(rates.values())),
            "mixed": _mean([float(0 < rate < 1) for rate in rates.values()]),
            "levels": {level: _mean(values) for level, values in sorted(levels.items())},
            "tokens": _mean([float(length) for length in lengths]),
        }
    return {"samples": num_samples, "conditions": found}


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 4)


def main(argv: Sequence[str] | None = None) -> int:
    plan = SMALL
    parser = argparse.ArgumentParser(prog="python -m experiments.headroom.pretrain", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/headroom"), help="folder (%(default)s)")
    parser.add_argument(
        "--steps", type=int, default=plan.phases.skill_steps, help="first phase (%(default)s)"
    )
    parser.add_argument(
        "--habit-steps", type=int, default=plan.habit_steps, help="second phase (%(default)s)"
    )
    parser.add_argument(
        "--size", type=int, default=0, choices=range(len(SIZES)), help="of SIZES (%(default)s)"
    )
    parser.add_argument("--threads", type=int, default=2, help="(%(default)s)")
    parser.add_argument("--prompts", type=int, default=150, help="measured per condition (%(default)s)")
    parser.add_argument("--samples", type=int, default=8, help="per prompt (%(default)s)")
    args = parser.parse_args(argv)
    for name in ("steps", "habit_steps", "threads", "prompts", "samples"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(args, name)}; expected 1 or more")
    torch.set_num_threads(args.threads)
    phases = replace(plan.phases, skill_steps=args.steps)
    plan = replace(plan, size=SIZES[args.size], phases=phases, habit_steps=args.habit_steps)
    began = time.monotonic()

    def tell(line: str) -> None:
        print(f"{(time.monotonic() - began) / 60:6.1f} min  {line}", flush=True)

    try:
        folder = pretrain(plan, args.out, tell)
    except UserError as mistake:
        print(mistake, file=sys.stderr)
        return 2
    figures = measure(folder, args.prompts, args.samples)
    write_bytes(args.out / "figures.json", (json.dumps(figures, indent=1) + "\n").encode())
    for name, row in figures["conditions"].items():
        print(f"{name}: {100 * row['accuracy']:.1f}% right, {row['tokens']:.0f} tokens")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    sys.exit(main())
