"""Training that is saved by two ranks and continued by another number of them; writes what it saw as JSON.

`python resharding.py RANK SIZE MEETING FOLDER OUT CASE [SETTING...]`: one process per rank, without Ray. If FOLDER
holds no checkpoint, SAVED steps are taken and saved there first. A case is one of conformance.py, a setting is verl's.
"""

import dataclasses
import json
import sys
import zlib
from pathlib import Path

import torch
from conformance import LengthJudge, config_for
from local_ranks import LocalRanks, build_rank, start_group
from torch.distributed.tensor import DTensor

from pivot.engines.ranks import RanksEngine
from pivot.models.loading import load_policy, resolve_model
from pivot.runs.checkpoint import load_state, save_state
from pivot.runs.metrics import step_metrics
from pivot.sampling import NativeSampler
from pivot.training import build
from pivot.training.clock import PhaseClock
from pivot.training.prompts import training_prompts

SAVED, LAST = 2, 4


class Replica:
    """`ranks.Rollouts`: a whole policy in every process, with the ranks' weights."""

    takes_images = False

    def __init__(self, rank) -> None:
        self.rank, self.policy = rank, load_policy(resolve_model("tiny"))

    def sample(self, prompts, request):
        return NativeSampler(self.policy).sample(prompts, request)

    def wake(self, version):
        self.policy.model.load_state_dict(dict(self.rank.weights()))
        self.policy.forget_features()

    def sleep(self): ...


def whole(tensors):
    return {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in tensors.items()}


def fingerprint(rank) -> dict[str, list[float]]:
    """Two sums over every weight and everything that Adam keeps of it, in double precision."""
    found = {}
    for name, weight in rank.policy.model.named_parameters():
        kept = {"weight": weight.detach(), **rank.engine.optimizer.state.get(weight, {})}
        for key, value in whole(kept).items():
            flat = value.double().flatten()
            found[f"{key} of {name}"] = [float(flat.sum()), float((flat * torch.arange(len(flat))).sum())]
    return found


def state_of(trainer, rank) -> dict:
    sources = trainer.sources
    return {
        "step": trainer.finished_steps,
        "position": sources.stream.state_dict(),
        "gate": trainer.gate.state_dict(),
        "buffer": {
            **dataclasses.asdict(sources.buffer.stats()),
            "arrays": {
                key: zlib.crc32(array.tobytes())
                for key, array in sources.buffer.state_dict()["arrays"].items()
            },
        },
        "numbers": fingerprint(rank),
    }


def main(number: str, size: str, meeting: str, folder: str, out: str, case: str, *extra: str) -> None:
    start_group(int(number), int(size), Path(meeting))
    config = config_for(case)
    rank, checkpoint = build_rank(config, *extra), Path(folder)
    engine = RanksEngine("verl", config, rank.tokenizer_only.encoder, LocalRanks(rank), Replica(rank))
    prompts = training_prompts(config).by_id
    trainer = build.build_trainer(config, engine, prompts, LengthJudge(), PhaseClock())
    if (checkpoint / "state.json").exists():
        load_state(trainer, checkpoint)
    else:
        for _ in range(SAVED):
            trainer.step()
        # All processes are drivers here; one writes what belongs to a driver.
        saving = save_state(trainer, checkpoint) if number == "0" else engine.save(checkpoint)
        saving.wait()
    seen = {"state": state_of(trainer, rank), "rows": [], "offloads": rank.engine._is_offload_optimizer}
    while trainer.finished_steps < LAST:
        outcome = trainer.step()
        seen["rows"].append(step_metrics(outcome, trainer.method, trainer.sources.buffer))
    if number == "0":
        Path(out).write_text(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
