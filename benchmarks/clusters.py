"""Arithmetic of a training step on 8, 64 and 512 GPUs: computed from constants that are measured or cited, not run.

    python -m benchmarks.clusters [--recipe geo3k-7b] [--gpu H100-80GB]

`same` trains the recipe's prompts per step on every number of GPUs; `grown` multiplies prompts and minibatches by the
number of nodes. Times are those of one step, in seconds; what they assume is printed below the table.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from math import ceil

from pivot import recipes
from pivot.config import Config
from pivot.doctor.memory import RESPONSE_TOKENS, micro_batch
from pivot.doctor.speed import DRAWN, Gpu, decoding, hours, named_gpu
from pivot.engines.verl.compose import GPU_SHARE, ClusterOptions, tensor_parallel
from pivot.models.architecture import Architecture, find_architecture

GPUS_PER_NODE = 8
NVLINK = 450e9
"""Bytes per second and direction of an H100: half of the 900 GB/s that NVIDIA states for both."""
NETWORK = 50e9
"""Bytes per second of one 400 Gb/s adapter per GPU, as in a DGX H100."""
DRIVER_SECONDS = 11.3 / 3072
"""Of the driver per trained response: `python -m benchmarks.driver --steps 3` (docs/performance.md)."""
TOKEN_BYTES = 388.3e6 / (39_000 * 8 * 300)
"""Of the buffer's file per stored token, and the seconds to save it: `python -m benchmarks.buffer`."""
SAVED_BYTES = 388.3e6 / 2.68
IMAGE_BYTES = 3 * 1024 * 1024
"""A prompt's decoded image of 1 Mpixel in Ray's object store."""
RESULT_BYTES = 4 * (8 + 3 * 4)
"""What crosses the driver per trained token: an id in four jobs (two images, candidates, update), three statistics."""


@dataclass(frozen=True)
class Step:
    """One step on one number of GPUs."""

    gpus: int
    prompts: int
    idle_ranks: int
    """Without a prompt in a minibatch, because a prompt and its responses stay on one rank."""
    sampling: float
    longest: float
    """Of sampling: one response of the largest length by itself, which no number of servers shortens."""
    compute: float
    """Scoring and update."""
    gathered: float
    """Bytes that each rank receives and sends for FSDP2's gathers and reductions."""
    exchange: float
    weights: float
    """Copying the weights to the servers."""
    driver: float
    sent: float
    """Bytes that leave or reach the driver."""

    @property
    def total(self) -> float:
        """Communication overlaps with computation at best, so the longer of the two counts."""
        return self.sampling + max(self.compute, self.exchange) + self.weights + self.driver


def step_on(gpus: int, grow: bool, config: Config, model: Architecture, gpu: Gpu) -> Step:
    factor = max(1, gpus // GPUS_PER_NODE) if grow else 1
    prompts = config.train.prompts_per_step * factor
    minibatch = config.train.minibatch_prompts * factor
    busy = min(gpus, minibatch)
    shape = micro_batch(config, model)
    tokens = shape.prompt_tokens + config.rollout.responses * RESPONSE_TOKENS
    link = NVLINK if gpus <= GPUS_PER_NODE else NETWORK

    cluster = ClusterOptions(nodes=ceil(gpus / GPUS_PER_NODE), gpus=min(gpus, GPUS_PER_NODE))
    shared = tensor_parallel(config, cluster, gpu.device.total_bytes)
    tail = decoding(config, model, gpu, shape.prompt_tokens + config.rollout.max_tokens)
    on_one = hours(replace(config, train=replace(config.train, prompts_per_step=prompts)), model, gpu)
    longest = config.rollout.max_tokens * tail.seconds(1)

    micro_batches = config.train.prompts_per_step // config.train.minibatch_prompts
    micro_batches *= ceil(ceil(minibatch / gpus) * tokens / config.train.micro_batch_tokens)
    # The update gathers bfloat16 weights for forward and for backward and reduces float32 gradients; each pass that
    # scores gathers once. A rank exchanges all but its own shard.
    passes = 1 + config.method.needs_corrupted + config.method.needs_reference + config.method.needs_anchors
    gathered = micro_batches * model.parameters * (2 + 2 + 4 + 2 * passes) * (gpus - 1) / gpus

    responses = prompts * config.rollout.responses
    return Step(
        gpus=gpus,
        prompts=prompts,
        idle_ranks=gpus - busy,
        sampling=max(on_one.sampling * 3600 * shared / gpus, longest),
        longest=longest,
        compute=(on_one.scoring + on_one.update) * 3600 / busy,
        gathered=gathered,
        exchange=gathered / link,
        weights=2 * model.parameters / link,
        driver=responses * DRIVER_SECONDS,
        sent=DRAWN * prompts * IMAGE_BYTES + responses * RESPONSE_TOKENS * RESULT_BYTES,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="geo3k-7b")
    parser.add_argument("--gpu", default="H100-80GB")
    arguments = parser.parse_args()
    config, gpu = recipes.get(arguments.recipe), named_gpu(arguments.gpu)
    config = replace(config, sampling=replace(config.sampling, memory_share=GPU_SHARE))
    model = find_architecture(config.model.path)

    columns = "GPUs | prompts | idle ranks | sampling | compute | exchange | weights | driver | step | driver's share"
    print(f"| batch | {columns} | GB per rank | GB at the driver |")
    print("|---|" + "--:|" * (columns.count("|") + 3))
    for grow in (False, True):
        for gpus in (8, 64, 512):
            step = step_on(gpus, grow, config, model, gpu)
            seconds = (step.sampling, step.compute, step.exchange, step.weights, step.driver, step.total)
            cells = [
                f"{step.gpus}",
                f"{step.prompts:,}",
                f"{step.idle_ranks}",
                *(f"{s:,.1f}" for s in seconds),
            ]
            share = f"{step.driver / step.total:.0%}"
            sizes = (f"{step.gathered / 1e9:,.0f}", f"{step.sent / 1e9:.1f}")
            print(f"| {'grown' if grow else 'same'} | " + " | ".join([*cells, share, *sizes]) + " |")
    print()
    for line in hours(config, model, gpu).assumptions:
        print(f"- {line}")
    longest = step_on(8, False, config, model, gpu).longest
    print(
        f"- one response of {config.rollout.max_tokens:,} tokens takes {longest:.0f} s however many servers there are"
    )
    print(
        f"- {NVLINK / 1e9:.0f} GB/s per GPU within a node, {NETWORK / 1e9:.0f} GB/s between nodes, at their peak"
    )
    print(
        "\n| buffer of 1,000,000 prompts | stored tokens | memory and file, GB | saved in, s |\n|---|--:|--:|--:|"
    )
    for kept in (1, 4, 8):
        tokens = 1_000_000 * kept * RESPONSE_TOKENS
        size = tokens * TOKEN_BYTES
        row = f"| {kept} responses per prompt | {tokens / 1e9:.1f}B"
        print(f"{row} | {size / 1e9:.1f} | {size / SAVED_BYTES:.0f} |")


if __name__ == "__main__":
    main()
