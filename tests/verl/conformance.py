"""The same rows through the local engine and through verl's FSDP2 engine; writes the largest differences as JSON.

`python conformance.py RANK SIZE MEETING OUT UNTIED CASE...`: one process per rank, without Ray. Both engines take the
same steps of real training (rollout, buffer, replay, anchors, scoring, update) on responses that the local one drew. A
case is METHOD or METHOD@VARIANT; UNTIED is the folder of a model with a head of its own.
"""

import json
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import torch
from local_ranks import LocalRanks, build_rank, start_group
from torch.distributed.tensor import DTensor, distribute_tensor

from pivot import recipes
from pivot.config import apply_settings
from pivot.config.methods import settings_for
from pivot.engines.base import ScoreRequest
from pivot.engines.local import LocalEngine
from pivot.engines.ranks import RanksEngine
from pivot.engines.settings import corruption_of, logprob_temperature
from pivot.engines.verl.rank import Rank
from pivot.method import preset
from pivot.models.rows import PromptWithResponses
from pivot.training import build
from pivot.training.clock import PhaseClock
from pivot.training.prompts import training_prompts
from pivot.types import Response, Reward

STEPS = 2
TEXT_TOO = "vaa"
"""The method whose prompts are made to have no image, every other one."""
SETTINGS = [
    f"train.steps={STEPS}",
    "train.prompts_per_step=6",
    "train.minibatch_prompts=3",
    "train.micro_batch_tokens=700",
    "rollout.responses=4",
    "rollout.max_tokens=72",
    "rollout.max_tries=2",
    "rollout.recompute_logprobs=true",
    "data.size=8",
    "method.warmup_share=0",
]


class LengthJudge:
    """Right where the number of tokens is even: every group has both, so that every term of a loss is reached.

    Args:
        flat: prompts all of whose responses are wrong, so that stored groups take their places.
    """

    def __init__(self, flat=()) -> None:
        self.flat = set(flat)

    def judge(self, prompts, responses):
        right = [len(t) % 2 == 0 and p.id not in self.flat for p, t in zip(prompts, responses, strict=True)]
        return [
            Reward(float(is_right), float("boxed" in text), "correct" if is_right else "wrong")
            for is_right, text in zip(right, responses, strict=True)
        ]

    def close(self): ...


class Recorded:
    """`ranks.Rollouts` that returns the responses which the local engine drew."""

    takes_images = False

    def sample(self, prompts, request):
        for index, prompt in enumerate(prompts):
            yield index, [_copy(response) for response in drawn[request.key[1], prompt.id]]

    def wake(self, version): ...

    def sleep(self): ...


class Recording(LocalEngine):
    """The local engine; what it draws is kept."""

    def sample(self, prompts, request, meanwhile=()):
        found = super().sample(prompts, request, meanwhile)
        for prompt, responses in zip(prompts, found, strict=True):
            drawn[request.key[1], prompt.prompt.id] = [_copy(response) for response in responses]
        return found


class Repeating(LocalEngine):
    """The local engine on responses that another one drew."""

    def sample(self, prompts, request, meanwhile=()):
        return [[_copy(r) for r in drawn[request.key[1], prompt.prompt.id]] for prompt in prompts]


drawn: dict[tuple, list[Response]] = {}


def _copy(response):
    return Response(
        response.token_ids_T, response.text, response.logprobs_T, response.entropy_T, response.truncated
    )


WARMER = "ser"
"""The method that samples, and so trains, at another temperature."""


VARIANTS = {
    "": [],
    "untied": ["model.path={untied}"],
    "bf16": ["model.path={untied}", "model.dtype=bfloat16", "model.gradient_checkpointing=true"],
    "lora": ["model.lora_rank=4", "model.gradient_checkpointing=true"],
    "frozen": ["model.path={untied}", "model.freeze_vision=true"],
}


def config_for(case: str):
    method, _, variant = case.partition("@")
    own = ["rollout.temperature=1.3"] if method == WARMER else []
    # With three candidates or fewer entropy alone decides; here V decides among any two.
    own += ["method.anchor_keep=1"] if method == "pivot" else []
    model = [setting.format(untied="".join(untied)) for setting in VARIANTS[variant]]
    config = replace(recipes.get("tiny"), method=preset(method))
    return apply_settings(config, [*settings_for(config.method, SETTINGS), *own, *model])


untied: list[str] = []
"""Its folder, once it is known."""


def trainer_of(config, engine, prompts):
    flat = list(prompts)[::3] if config.method.stored else ()
    return build.build_trainer(config, engine, prompts, LengthJudge(flat), PhaseClock())


def ranks_engine(config, rank: Rank) -> RanksEngine:
    return RanksEngine("verl", config, rank.tokenizer_only.encoder, LocalRanks(rank), Recorded())


def compare(one, other, found: dict[str, float]) -> None:
    """The largest difference by name; both took the same step."""

    def note(name, a, b):
        if a is None and b is None:
            return
        a, b = (torch.as_tensor(x, dtype=torch.float32).nan_to_num(7.0) for x in (a, b))
        assert a.shape == b.shape, (name, a.shape, b.shape)
        # Absolute up to 1, relative above: c = 1 - q/p has no lower bound, and some terms are sums over tokens.
        apart = (a - b).abs() / a.abs().clamp(min=1.0)
        found[name] = max(found[name], float(apart.max()) if a.numel() else 0.0)

    assert [g.prompt.id for g in one.groups] == [g.prompt.id for g in other.groups]
    for name in ("clean_logprobs_BT", "old_logprobs_BT", "entropy_BT", "corrupted_logprobs_BT", "similarity_BT",
                 "reference_logprobs_BT", "anchor_logprob_B", "advantage_BT", "policy_mask_BT"):  # fmt: skip
        note(name, getattr(one.batch, name), getattr(other.batch, name))
    for name in ("support_BT", "utility_BT"):
        note(name, getattr(one.diagnostics, name), getattr(other.diagnostics, name))
    note("dependency", one.anchors.dependency, other.anchors.dependency)
    norms, others = one.update.grad_norms, other.update.grad_norms
    note("grad_norm", norms[:1], others[:1])
    note("later_grad_norm", norms[1:], others[1:])
    for name, value in one.update.terms.items():
        note(f"loss/{name}", value, other.update.terms[name])
    found["replayed"] += sum(g.replayed for g in one.groups)
    found["anchors"] += sum(g.anchor is not None for g in other.groups)
    found["stored"] += other.num_stored or 0


def whole_weights(rank: Rank):
    for name, weight in rank.policy.model.named_parameters():
        yield name, (weight.full_tensor() if isinstance(weight, DTensor) else weight).detach().clone()


def weights_apart(policy, rank: Rank) -> float:
    whole = dict(whole_weights(rank))
    return max(float((p - whole[n]).abs().max()) for n, p in policy.model.named_parameters())


def run(case: str, rank: Rank) -> dict[str, float]:
    config = config_for(case)
    prompts = training_prompts(config).by_id
    if case.partition("@")[0] == TEXT_TOO:
        prompts = {name: without_image(p) if i % 2 else p for i, (name, p) in enumerate(prompts.items())}
    drawn.clear()
    local = Recording.open(config)
    rank.method, rank.corruptor.corruption = config.method, corruption_of(config)
    rank.policy.temperature = logprob_temperature(config)
    one = trainer_of(config, local, prompts)
    other = trainer_of(config, ranks_engine(config, rank), prompts)
    found: dict[str, float] = defaultdict(float)
    exact = exact_trainer(config, prompts) if config.model.dtype == "bfloat16" else None
    for _ in range(STEPS):
        set_weights(rank, dict(local.policy.model.named_parameters()))
        if exact is not None:
            exact.engine.policy.model.load_state_dict(local.policy.model.state_dict())
        steps = one.step(), other.step()
        compare(*steps, found)
        found["weights"] = max(found["weights"], weights_apart(local.policy, rank))
        if exact is not None:
            compare_with_exact(exact.step(), steps, found)
    return dict(found)


def exact_trainer(config, prompts):
    """The local engine in float32."""
    return trainer_of(config, Repeating.open(apply_settings(config, ["model.dtype=float32"])), prompts)


def compare_with_exact(exact, steps, found: dict[str, float]) -> None:
    """How far the gradient norms of both engines are from float32's, by update."""
    for name, step in zip(("local", "ranks"), steps, strict=True):
        norms = zip(("first", "second"), exact.update.grad_norms, step.update.grad_norms, strict=True)
        for update, expected, norm in norms:
            key = f"float32/{name}_{update}_norm"
            found[key] = max(found[key], abs(norm - expected))


def without_image(prompt):
    return replace(prompt, images=(), question=prompt.question.replace("<image>", ""))


def odd_batches(rank: Rank) -> dict[str, float]:
    """Batches that crash verl's own path (#7899): one row, rows of equal length; and rows without any image.

    Differences are relative above 1: the tokens are made up, so that log-probs reach -30 and divergences 12.
    """
    config = config_for("pivot")
    local, remote = LocalEngine.open(config), ranks_engine(config, rank)
    set_weights(rank, dict(local.policy.model.named_parameters()))
    rank.corruptor.corruption = corruption_of(config)
    prompts = list(training_prompts(config).by_id.values())
    encode, tokens = local.prepare, torch.arange(20, 32)
    batches = {
        "one row": [PromptWithResponses(encode(prompts[0]), [tokens])],
        "one token": [PromptWithResponses(encode(prompts[0]), [tokens[:1]])],
        "equal lengths": [PromptWithResponses(encode(prompts[0]), [tokens, tokens + 1, tokens + 2])],
        "equal prompts": [PromptWithResponses(encode(prompts[0]), [tokens])] * 3,
        "no image": [PromptWithResponses(encode(without_image(prompts[0])), [tokens])],
        "image beside none": [
            PromptWithResponses(encode(p), [tokens]) for p in (prompts[0], without_image(prompts[1]))
        ],
    }
    found: dict[str, float] = {}
    for name, units in batches.items():
        for view in ("clean", "corrupted", "both"):
            request = ScoreRequest(units, 1, view)
            one, other = vars(local.score(request)), vars(remote.score(request))
            pairs = [(v.float(), other[k].float()) for k, v in one.items() if v is not None]
            apart = [float(((a - b).abs() / a.abs().clamp(min=1)).max()) for a, b in pairs]
            found[f"{name}, {view}"] = max(apart)
    return found


def set_weights(rank: Rank, weights) -> None:
    """Each step starts from the same weights: a step is compared, not what rounding makes of many."""
    with torch.no_grad():
        for name, weight in rank.policy.model.named_parameters():
            weight.copy_(distribute_tensor(weights[name].detach(), weight.device_mesh, weight.placements))


def trained_alone(rank: Rank, before: dict[str, torch.Tensor]) -> list[str]:
    """Parts of the model whose weights have changed."""
    after = dict(whole_weights(rank))
    changed = [name for name, weight in after.items() if not torch.equal(weight, before[name])]
    return sorted(
        {"adapters" if ".lora_" in n else "vision" if ".visual." in n else "language" for n in changed}
    )


def main(rank_number: str, size: str, meeting: str, out: str, folder: str, *cases: str) -> None:
    start_group(int(rank_number), int(size), Path(meeting))
    untied.append(folder)
    results = {}
    for variant in dict.fromkeys(case.partition("@")[2] for case in cases):
        own = [case for case in cases if case.partition("@")[2] == variant]
        with_reference = next((c for c in own if preset(c.partition("@")[0]).needs_reference), own[0])
        rank = build_rank(config_for(with_reference))
        start = dict(whole_weights(rank))
        for case in own:
            rank.engine.optimizer.state.clear()
            results[case] = run(case, rank)
        results[f"changed@{variant}"] = trained_alone(rank, start)
        if variant == "":
            results["odd batches"] = odd_batches(rank)
    if rank_number == "0":
        Path(out).write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
