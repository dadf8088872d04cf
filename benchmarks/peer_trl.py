"""The peer's side: TRL's own GRPOTrainer with the DAPO loss, one training step a turn. Runs in `.venv-trl`.

    .venv-trl/bin/python -m benchmarks.peer_trl WORK.json --case fixed --micro-batch 32

Nothing of it is changed: a callback waits before a step and reports after it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, Image
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.cases import CASES, Meter, every_other
from benchmarks.turns import Stage


class Turns(TrainerCallback):
    """Waits for a turn at the beginning of a step, answers at its end, and ends training when no turn comes."""

    def __init__(self, stage: Stage, groups: int) -> None:
        self.stage, self.groups = stage, groups
        self.meter: Meter | None = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not self.stage.wait():
            raise EndOfTurns

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.stage.answer(groups=self.groups, **(self.meter.read() if self.meter else {}))


class EndOfTurns(Exception):
    """The comparison is over."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("work", type=Path)
    parser.add_argument("--case", choices=CASES, default="fixed")
    parser.add_argument(
        "--micro-batch", type=int, default=32, help="responses in a forward and backward pass"
    )
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    work = json.loads(args.work.read_text())
    rows = [
        {
            "prompt": [{"role": "system", "content": r["system"]}, {"role": "user", "content": r["user"]}],
            "image": r["image"],
        }
        for r in work["rows"]
    ]
    data = Dataset.from_list(rows).cast_column("image", Image())
    case = CASES[args.case]
    accumulation = case.prompts * case.responses // args.micro_batch
    with tempfile.TemporaryDirectory() as scratch:
        config = GRPOConfig(
            output_dir=scratch, use_cpu=True, bf16=False, max_steps=10_000, learning_rate=1e-7,
            per_device_train_batch_size=args.micro_batch, gradient_accumulation_steps=accumulation,
            steps_per_generation=accumulation, num_generations=case.responses, max_completion_length=case.max_tokens,
            generation_kwargs={"min_new_tokens": case.min_tokens} if case.min_tokens else None,
            loss_type="dapo", beta=0.0, epsilon_high=0.28, temperature=1.0, top_p=case.top_p,
            gradient_checkpointing=case.checkpointing,
            save_strategy="no", logging_steps=10_000, report_to=[], disable_tqdm=True,
        )  # fmt: skip
        turns = Turns(Stage(), case.prompts)
        trainer = GRPOTrainer(
            model=work["model"], reward_funcs=every_other, args=config, train_dataset=data, callbacks=[turns]
        )
        turns.meter = Meter(trainer.model)
        try:
            trainer.train()
        except EndOfTurns:
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
