"""Two real steps of the recipe smolvlm-256m on a CPU: SmolVLM-256M's published sizes, random float32 weights.

Nothing is downloaded: writes a model folder, runs `pivot train` on it and prints seconds per phase and peak memory.
The vocabulary has SmolVLM's 49,280 rows, the tokenizer is the tiny model's. Random weights solve nothing, so that every
group would be dropped: every other response counts as right instead.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MODEL = "SmolVLM-256M"
TEMPLATE = """\
<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}\
{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}\
{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}\
{% elif part['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>
{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"""
TOKENS = ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"]
TOKENS += [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]


def every_other(completions: list[Any], **columns: Any) -> list[float]:
    """The reward of this benchmark: half of each group is right."""
    return [float(number % 2) for number in range(len(completions))]


def write_model(folder: Path) -> int:
    """A folder as `save_pretrained` writes it, its image settings the published ones. Returns the number of weights."""
    import torch
    from transformers import (
        AutoConfig,
        AutoModelForImageTextToText,
        AutoTokenizer,
        GenerationConfig,
        Idefics3ImageProcessorPil,
    )

    from pivot import tiny
    from pivot.models.idefics3 import Idefics3

    tokenizer = AutoTokenizer.from_pretrained(tiny.checkpoint_path("easy"))
    tokenizer.add_special_tokens({"additional_special_tokens": TOKENS})
    tokenizer.chat_template = TEMPLATE
    ids = tokenizer.get_vocab()
    special = {"image_token_id": ids["<image>"], "pad_token_id": ids["<|endoftext|>"]}
    config = AutoConfig.for_model(**Idefics3.published[MODEL](), **special)
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config)
    ends = [ids["<end_of_utterance>"], ids["<|im_end|>"]]
    model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=ids["<|endoftext|>"])
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    side = config.vision_config.image_size
    Idefics3ImageProcessorPil(
        size={"longest_edge": 4 * side}, max_image_size={"longest_edge": side}
    ).save_pretrained(folder)
    tokens_per_tile = (side // config.vision_config.patch_size // config.scale_factor) ** 2
    settings = {"processor_class": "Idefics3Processor", "image_seq_len": tokens_per_tile}
    (folder / "processor_config.json").write_text(json.dumps(settings))
    return model.num_parameters()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="Geometry3K's train.parquet")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=16, help="per step; the recipe has 16")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model, run = Path(folder, "model"), Path(folder, "run")
        print(f"{write_model(model) / 1e6:.0f}M weights", flush=True)
        changed = [
            "eval.every=0",
            "eval.final_prompts=0",
            f"train.prompts_per_step={args.prompts}",
            f"train.minibatch_prompts={args.prompts // 2}",
            "data.validation_split=null",
            "data.validation_size=1",
        ]
        command = [sys.executable, "-m", "pivot", "train", "--recipe", "smolvlm-256m", "--model", str(model)]
        command += ["--data", args.data, "--steps", str(args.steps), "--out", str(run), "--no-report"]
        command += ["--reward", f"{__file__}:every_other", *(p for s in changed for p in ("--set", s))]
        subprocess.run(command, check=True)
        for line in (run / "metrics.jsonl").read_text().splitlines():
            row = json.loads(line)
            print({k: round(v, 3) for k, v in row.items() if k.startswith(("time/", "grad", "memory"))})
            print({k: row[k] for k in row if k.startswith(("reward/", "response/length"))})
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    print(f"peak memory of pivot train {peak:.1f} GiB")


if __name__ == "__main__":
    main()
