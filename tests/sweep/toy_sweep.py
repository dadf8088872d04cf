"""Where the plans are, and the options that shrink one to seconds on the tiny model."""

from pathlib import Path

PAPER = Path(__file__).resolve().parents[2] / "experiments" / "paper"
PLANS = sorted(PAPER.glob("*.yaml"))
TOY_SETTINGS = (
    "train.steps=2",
    "train.prompts_per_step=4",
    "train.minibatch_prompts=2",
    "rollout.responses=4",
    "rollout.max_tokens=48",
    "rollout.max_tries=1",
    "data.size=12",
    "data.validation_size=4",
    "eval.every=1",
    "eval.samples=1",
    "eval.final_prompts=0",
    "method.warmup_share=0",
    "checkpoint.every=2",
    "log.rollouts_every=1",
)
TOY = [
    "--recipe",
    "tiny",
    "--engine",
    "local",
    "--sampler",
    "native",
    "--limit",
    "4",
    "--samples",
    "2",
]
for _setting in TOY_SETTINGS:
    TOY += ["--set", _setting]
