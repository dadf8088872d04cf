"""Seconds per step of a cluster's driver: everything but waiting for ranks and rollout servers, which answer at once.

    python -m benchmarks.driver [--prompts 384] [--responses 8] [--tokens 2048] [--steps 3] [--profile]

A whole run of PIVOT with real prompts, images of 1 Mpixel in files, the real verifier, buffer, anchors, jobs and
metrics, over the engine of `--engine verl` without Ray. Jobs and requests are pickled as Ray would, results unpickled.
Responses and log-probs are made up, and the time for that is not counted, nor is the first step, which also reads all
prompts. The last step saves a checkpoint. `processor` is the driver's processor time, of all threads.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pickle
import pstats
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from PIL import Image

from benchmarks.turns import machine
from pivot import recipes
from pivot.config import Config, apply_settings
from pivot.engines.jobs import Piece, RankUpdate, ScoreJob, UpdateJob
from pivot.engines.ranks import RanksEngine
from pivot.engines.settings import model_options
from pivot.engines.verl.rollouts import ServerRollouts
from pivot.models.loading import load_tokenizer_only, resolve_model
from pivot.models.policy import Policy, ResponseStatistics
from pivot.runs.folder import RunFolder
from pivot.runs.run import Host, Run
from pivot.tiny import procedural
from pivot.training.clock import PhaseClock
from pivot.types import Prompt

SIZE = (1024, 1024)
"""Of an image, in pixels."""
PHASES = ("rollout", "verify", "anchors", "score", "update", "other")
TERMS = (
    "total",
    "ratio_tokens",
    "ratio_sum",
    "ratio_max",
    "clip_low_tokens",
    "clip_high_tokens",
    "dual_clip_tokens",
)
"""Of a loss, as far as metrics need them."""


@dataclass
class Meter:
    """Seconds of each step that do not count, by phase."""

    clock: PhaseClock
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    processor: float = 0.0
    """Processor seconds of them."""

    @contextmanager
    def waiting(self) -> Iterator[None]:
        since, processor = time.perf_counter(), time.process_time()
        yield
        self.seconds[self.clock.running or "other"] += time.perf_counter() - since
        self.processor += time.process_time() - processor


def send(value: Any) -> None:
    """What handing a value to Ray costs the sender: pickling, with large buffers copied once."""
    buffers: list[pickle.PickleBuffer] = []
    pickle.dumps(value, 5, buffer_callback=buffers.append)
    for buffer in buffers:
        bytes(buffer.raw())


@dataclass
class InstantRanks:
    """`jobs.Ranks` that make up log-probs; the ranks' own work is not the driver's."""

    meter: Meter
    size: int = 32

    def score(self, jobs: Sequence[ScoreJob]) -> list[list[ResponseStatistics]]:
        for job in jobs:
            send(job)
        with self.meter.waiting():
            packed = [
                pickle.dumps([_statistics(piece, job.view != "clean") for piece in job.pieces])
                for job in jobs
            ]
        return [pickle.loads(answer) for answer in packed]

    def update(self, jobs: Sequence[UpdateJob]) -> list[RankUpdate]:
        for job in jobs:
            send(job)
        return [RankUpdate(dict.fromkeys(TERMS, 1.0), 0.5) for _ in jobs]

    def nonfinite_weights(self) -> list[list[str]]:
        return [[] for _ in range(self.size)]

    def save(self, folder: Path) -> InstantRanks:
        (folder / "model").mkdir()
        return self

    def wait(self) -> dict[str, str]:
        return {}

    def load(self, folder: Path) -> None: ...


def _statistics(piece: Piece, corrupted: bool) -> ResponseStatistics:
    rows = [y for responses in piece.responses for y in responses]
    width = max(map(len, rows))
    mask_BT = torch.arange(width) < torch.tensor([len(y) for y in rows])[:, None]
    noise_BT = torch.rand(mask_BT.shape)
    more = {"corrupted_logprobs_BT": -1.5 * noise_BT, "divergence_BT": 0.1 * noise_BT} if corrupted else {}
    return ResponseStatistics(mask_BT, -noise_BT, noise_BT, **more)


class InstantServer:
    """verl's client of rollout servers. Half of the responses to a prompt are right."""

    def __init__(self, meter: Meter, tokenizer_only: Policy, num_tokens: int) -> None:
        self.meter, self.num_tokens = meter, num_tokens
        self.encoder, self.tokenizer = tokenizer_only.encoder, tokenizer_only.tokenizer
        self.end = tokenizer_only.end_ids[0]
        self._sent = 0
        self._filler = self._ids("<think> " + " ".join(str(i % 97) for i in range(num_tokens)))
        self._tails: dict[tuple[int, ...], list[int]] = {}

    def know(self, prompts: Sequence[Prompt]) -> None:
        for prompt in prompts:
            self._tails[tuple(self.encoder.text_ids(prompt))] = self._tail(prompt.answer)

    async def generate(self, request_id: str, prompt_ids: list[int], **request: Any) -> Any:
        send((request_id, prompt_ids, request))
        with self.meter.waiting():
            self._sent += 1
            tail = self._tails[tuple(prompt_ids)] if self._sent % 2 else self._tail("-1")
            ids = self._filler[: self.num_tokens - len(tail) - self._sent % 64] + tail
        return SimpleNamespace(token_ids=ids, extra_fields={})

    def _tail(self, answer: str) -> list[int]:
        return [*self._ids(f" </think> The answer is \\boxed{{{answer}}}."), self.end]

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])


class InstantRollouts:
    """`ranks.Rollouts` over verl's servers, through this project's own client."""

    def __init__(self, server: InstantServer, tokenizer_only: Policy, ranks: int) -> None:
        rollout = SimpleNamespace(
            name="vllm",
            tensor_model_parallel_size=1,
            data_parallel_size=1,
            pipeline_model_parallel_size=1,
            full_determinism=False,
        )
        config = SimpleNamespace(
            actor_rollout_ref=SimpleNamespace(rollout=rollout),
            trainer=SimpleNamespace(nnodes=1, n_gpus_per_node=ranks),
        )
        self.client = ServerRollouts.create(config, server)
        self.client.tokenizer_only, self.client.share = tokenizer_only, send
        self.takes_images, self.sample = self.client.takes_images, self.client.sample

    def wake(self, version: int) -> None: ...

    def sleep(self) -> None: ...


def write_rows(folder: Path, num_prompts: int) -> Path:
    """Prompts of the tiny world with their drawings at full size, as a data set in files."""
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
        for number, prompt in enumerate(procedural.dataset("train", num_prompts)):
            names = [f"{number}-{i}.png" for i in range(len(prompt.images))]
            for name, source in zip(names, prompt.images, strict=True):
                image = source.open().convert("RGB").resize(SIZE, Image.Resampling.BICUBIC)
                image.save(folder / name, compress_level=1)
            # Numbered, because drawings differ where questions do not, and the server knows the text alone.
            question = f"{prompt.question} (Problem {number}.)"
            row = {"id": str(number), "problem": question, "answer": prompt.answer, "images": names}
            file.write(json.dumps(row) + "\n")
    return folder / "rows.jsonl"


def configure(args: argparse.Namespace, rows: Path) -> Config:
    return apply_settings(
        recipes.get("tiny"),
        [
            f"data.train={rows}",
            "data.holdout=0",
            "data.validation=tiny",
            "data.validation_size=1",
            f"model.max_pixels={SIZE[0] * SIZE[1]}",
            f"train.steps={args.steps}",
            f"train.prompts_per_step={args.prompts}",
            f"train.minibatch_prompts={args.prompts // 3}",
            "train.micro_batch_tokens=16384",
            f"rollout.responses={args.responses}",
            f"rollout.max_tokens={args.tokens}",
            "rollout.max_prompt_tokens=4096",
            "rollout.max_tries=4",
            "method.warmup_share=0",
            "eval.every=0",
            "eval.final_prompts=0",
        ],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--prompts", type=int, default=384)
    parser.add_argument("--responses", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="also the functions that take longest")
    args = parser.parse_args()
    print(f"{machine()}; {args.prompts} prompts x {args.responses} responses of {args.tokens} tokens")
    profile = cProfile.Profile()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = configure(args, write_rows(folder, 2 * args.prompts))
        if args.profile:
            profile.enable()
        rows = train(config, folder / "run")
        profile.disable()
    print(f"{'seconds':8}" + "".join(f"{phase:>10}" for phase in (*PHASES, "driver", "processor")))
    for row in rows:
        cells = [row[phase] for phase in PHASES]
        print(
            f"step {row['step']:<3.0f}"
            + "".join(f"{cell:10.2f}" for cell in (*cells, sum(cells), row["processor"]))
        )
    if args.profile:
        pstats.Stats(profile).sort_stats("cumulative").print_stats(45)
    return 0


@dataclass
class Notes:
    """`runs.Tracker`: the driver's seconds by phase, without waiting; from one step's end to the next one's."""

    rows: list[dict[str, float]] = field(default_factory=list)
    meter: Meter | None = None
    _since: tuple[float, float] | None = None

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        assert self.meter is not None
        now, processor, waited = time.perf_counter(), time.process_time(), self.meter.seconds
        named = {name: metrics.get(f"time/{name}", 0.0) - waited[name] for name in PHASES[:-1]}
        # The first step also reads all prompts, and a step's own clock is read before records are written.
        if self._since is not None:
            other = now - self._since[0] - sum(waited.values()) - sum(named.values())
            used = processor - self._since[1] - self.meter.processor
            self.rows.append({"step": float(step), **named, "other": other, "processor": used})
        self._since = now, processor
        self.meter.processor = 0.0
        waited.clear()

    def close(self) -> None: ...


def train(config: Config, out: Path) -> list[dict[str, float]]:
    """Seconds of the driver by phase, for each step."""
    tokenizer_only = load_tokenizer_only(Path(resolve_model(config.model.path)), model_options(config))
    notes = Notes()
    with RunFolder.create(out) as folder:
        folder.write_config({})
        run = Run(config, folder, engine="verl", host=Host(quiet=True, trackers=lambda: [notes]))
        notes.meter = meter = Meter(run.progress.clock)
        server = InstantServer(meter, tokenizer_only, config.rollout.max_tokens)
        server.know(list(run.prompts.by_id.values()))
        ranks = InstantRanks(meter)
        rollouts = InstantRollouts(server, tokenizer_only, ranks.size)

        def open_engine(config: Config, _: Path | None) -> RanksEngine:
            engine = RanksEngine("verl", config, tokenizer_only.encoder, ranks, rollouts)
            rollouts.client.images = engine.images.take
            return engine

        run.go(open_engine)
    return notes.rows


if __name__ == "__main__":
    sys.exit(main())
