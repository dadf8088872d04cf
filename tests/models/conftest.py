"""A tiny random model of each family as a Hugging Face folder, with that family's own image processing."""

from dataclasses import replace

import pytest
import torch
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from pivot import recipes, tiny
from pivot.config import apply_settings
from pivot.engines.local import LocalEngine
from pivot.method import preset
from pivot.models.loading import load_policy
from pivot.training import build
from pivot.training.clock import PhaseClock
from pivot.training.prompts import training_prompts
from pivot.training.selection import Quotas, Selection
from pivot.types import Prompt

HIDDEN = 64
CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
VISION = {"spatial_merge_size": 2, "temporal_patch_size": 2, "num_heads": 2}
FAMILIES = {
    "qwen2_vl": (
        Qwen2VLConfig,
        Qwen2VLForConditionalGeneration,
        {"depth": 2, "embed_dim": HIDDEN, "hidden_size": HIDDEN, "mlp_ratio": 2, "patch_size": 14},
        {"mrope_section": [4, 6, 6]},
        CLIP,
    ),
    "qwen2_5_vl": (
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        # Windows of 2 x 2 merged patches in the first block, all patches in the second.
        {"depth": 2, "hidden_size": HIDDEN, "intermediate_size": 96, "out_hidden_size": HIDDEN, "patch_size": 14,
         "window_size": 56, "fullatt_block_indexes": [1]},
        {"mrope_section": [4, 6, 6]},
        CLIP,
    ),
    "qwen3_vl": (
        Qwen3VLConfig,
        Qwen3VLForConditionalGeneration,
        {"depth": 3, "hidden_size": HIDDEN, "intermediate_size": 96, "out_hidden_size": HIDDEN, "patch_size": 16,
         "num_position_embeddings": 36, "deepstack_visual_indexes": [0, 1]},
        {"mrope_section": [6, 5, 5], "mrope_interleaved": True},
        HALF,
    ),
}  # fmt: skip


def build_folder(folder, family, tokenizer, num_rows):
    """A random model of a family and everything beside it, as `save_pretrained` writes them."""
    config_class, model_class, vision, rope, normalisation = FAMILIES[family]
    token = tokenizer.get_vocab().__getitem__
    text = {
        "vocab_size": num_rows,
        "hidden_size": HIDDEN,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, **rope},
        "initializer_range": 0.1,
        "pad_token_id": token("<|endoftext|>"),
    }
    if family == "qwen3_vl":
        # One layer more than deepstack features: what is added after the last layer reaches no response token.
        text |= {"head_dim": 32, "num_hidden_layers": 3}
    config = config_class(
        text_config=text,
        vision_config={**VISION, **vision, "initializer_range": 0.1},
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
    )
    torch.manual_seed(0)
    model = model_class(config)
    ends = [token("<|im_end|>"), token("<|endoftext|>")]
    model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=ends[1])
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    size = {"shortest_edge": 56 * 56, "longest_edge": 168 * 168}
    processor = Qwen2VLImageProcessorPil(
        patch_size=vision["patch_size"], merge_size=2, size=size, **normalisation
    )
    processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def family_folder(tmp_path_factory):
    """Family -> its folder, built once; `qwen2_5_vl-real` has the real tokenizer and its 151,936 rows."""
    built = {}

    def make(name, shared=None):
        if name not in built:
            family, _, real = name.partition("-")
            if real:
                tokenizer, num_rows = AutoTokenizer.from_pretrained(shared / "qwen2_5_tokenizer"), 151_936
            else:
                tokenizer = AutoTokenizer.from_pretrained(tiny.checkpoint_path("easy"))
                num_rows = len(tokenizer)
            built[name] = build_folder(tmp_path_factory.mktemp(name), family, tokenizer, num_rows)
        return built[name]

    return make


REWARD = "def odd(completions, **columns):\n    return [float(len(text) % 2) for text in completions]\n"


@pytest.fixture
def make_trainer(tmp_path, monkeypatch):
    """PIVOT on a random model, with a reward that half of its responses get, so that groups carry a signal."""

    def make(folder, *settings):
        (tmp_path / "odd_reward.py").write_text(REWARD)
        monkeypatch.syspath_prepend(tmp_path)
        config = apply_settings(
            replace(recipes.get("tiny"), method=preset("pivot")),
            [f"model.path={folder}", "reward.function=odd_reward:odd", "train.prompts_per_step=4",
             "train.minibatch_prompts=2", "rollout.responses=4", "rollout.max_tokens=8", "rollout.max_tries=2",
             "data.size=8", "method.warmup_share=0", "train.lr=1e-3", "train.weight_decay=0", *settings],
        )  # fmt: skip
        engine, judge = LocalEngine.open(config), build.build_judge(config)
        return build.build_trainer(config, engine, training_prompts(config).by_id, judge, PhaseClock())

    return make


@pytest.fixture(scope="session")
def remember_responses():
    """Fill a trainer's buffer. A random model hardly ever ends its turn, so the turns are ended here."""

    def remember(trainer):
        selection = Selection(trainer.sources, 0, Quotas(4, 0))
        groups = trainer._sample(selection.draw(), selection)
        for response in (r for group in groups for r in group.responses):
            response.token_ids_T[-1] = trainer.engine.policy.end_ids[0]
            response.truncated = False
        trainer._reward(groups)
        trainer._record(groups, 0)
        trainer.engine.policy.forget_features()

    return remember


@pytest.fixture
def model(folder):
    """The model in the folder that a test module's own fixture builds."""
    return load_policy(str(folder))


@pytest.fixture
def prompts(picture):
    """Prompts with two images, none and one."""
    return [
        Prompt("two", "<image>Compare <image>.", "1", (picture(60, 130), picture(170, 90, "blue"))),
        Prompt("none", "How much is 2 + 2?", "4"),
        Prompt("one", "Read <image> it.", "1", (picture(100, 100, "green"),)),
    ]
