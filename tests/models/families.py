"""Every family as a tiny random model: configuration, tokens, chat template, image processor.

The chat templates have the shape of the published ones; the tokenizer is the tiny model's with the family's own tokens.
"""

import json
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForImageTextToText, AutoTokenizer, GenerationConfig

from pivot import tiny

HIDDEN, SIDE, PATCH = 64, 56, 14
CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
TEXT = {
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "initializer_range": 0.1,
}
VISION = {
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": PATCH,
    "initializer_range": 0.1,
}
CHATML = """\
{% for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}\
{% if part['type'] == 'image' %}IMAGE{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}\
{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
SPEAKERS = """\
<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}\
{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}\
{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}\
{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>
{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"""
"""The system message opens the user's turn, and texts lose the whitespace around them."""
GEMMA = """\
{{ bos_token }}{% set ns = namespace(prefix='') %}{% for message in messages %}{% if message['role'] == 'system' %}\
{% set text = message['content'] if message['content'] is string else message['content'][0]['text'] %}\
{% set ns.prefix = text + '\\n\\n' %}\
{% else %}<start_of_turn>{{ 'model' if message['role'] == 'assistant' else message['role'] }}
{{ ns.prefix }}{% if message['content'] is string %}{{ message['content'] | trim }}{% else %}\
{% for part in message['content'] %}{% if part['type'] == 'image' %}<start_of_image>{% else %}\
{{ part['text'] | trim }}{% endif %}{% endfor %}{% endif %}<end_of_turn>
{% endif %}{% endfor %}{% if add_generation_prompt %}<start_of_turn>model
{% endif %}"""
"""All images of a turn come first."""
IMAGES_FIRST = """\
{% for message in messages %}{{ '<|im_start|>' + message['role'] + ' ' }}\
{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}<image>{% endfor %}\
{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}{{ '\\n' + part['text'] }}{% endfor %}\
<|im_end|>{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
ROWS = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
GLM_MARKS = ["<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>"]
AYA_MARKS = ["<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_PATCH|>", "<|IMG_LINE_BREAK|>", "TILE_GLOBAL"]
AYA_MARKS += [f"TILE_{n}" for n in range(1, 13)]


@dataclass(frozen=True)
class Spec:
    """What `build_folder` needs to know about a family."""

    processor: str
    """Hugging Face's class."""
    image_processor: str
    image_settings: dict[str, Any]
    text: dict[str, Any] = field(default_factory=dict)
    vision: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    """Names of tokens stand for their ids."""
    named_tokens: dict[str, str] = field(default_factory=dict)
    tokens: tuple[str, ...] = ()
    plain_tokens: tuple[str, ...] = ()
    """Not special: texts contain them."""
    template: str | None = None
    """None: the tiny model's own."""
    processor_settings: dict[str, Any] = field(default_factory=dict)
    ends: tuple[str, ...] = ("<|im_end|>", "<|endoftext|>")


QWEN_SIZE = {"shortest_edge": 56 * 56, "longest_edge": 168 * 168}
QWEN_VISION = {"spatial_merge_size": 2, "temporal_patch_size": 2, "num_heads": 2, "depth": 2}
QWEN_TOKENS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}


def qwen(
    processor: str, patch: int, text: dict[str, Any], vision: dict[str, Any], normal: dict[str, Any]
) -> Spec:
    return Spec(
        processor=processor,
        image_processor="Qwen2VLImageProcessorPil",
        image_settings={"patch_size": patch, "merge_size": 2, "size": QWEN_SIZE, **normal},
        text=text,
        vision={**QWEN_VISION, "patch_size": patch, **vision},
        config=QWEN_TOKENS,
    )


def rope(**settings: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, **settings}}


QWEN3 = rope(mrope_section=[6, 5, 5], mrope_interleaved=True)
# One layer more than deepstack features: what is added after the last layer reaches no response token.
QWEN3_VL = {**QWEN3, "num_hidden_layers": 3}
QWEN3_VISION = {"depth": 3, "out_hidden_size": HIDDEN, "num_position_embeddings": 36}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
RECURRENT = {
    **rope(mrope_section=[2, 1, 1], mrope_interleaved=True, partial_rotary_factor=0.25),
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
IDEFICS = {
    "image_processor": "Idefics3ImageProcessorPil",
    "image_settings": {"size": {"longest_edge": 3 * SIDE}, "max_image_size": {"longest_edge": SIDE}},
    "text": {"model_type": "llama"},
    "config": {"scale_factor": 2, "image_token_id": "<image>", "tie_word_embeddings": False},
    "tokens": ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *ROWS),
    "template": SPEAKERS,
    "processor_settings": {"image_seq_len": 4},
    "ends": ("<end_of_utterance>", "<|im_end|>"),
}
SPECS = {
    "qwen2_vl": qwen(
        "Qwen2VLProcessor",
        14,
        rope(mrope_section=[4, 6, 6]),
        {"embed_dim": HIDDEN, "mlp_ratio": 2},
        CLIP,
    ),
    "qwen2_5_vl": qwen(
        "Qwen2_5_VLProcessor",
        14,
        rope(mrope_section=[4, 6, 6]),
        # Windows of 2 x 2 merged patches in the first block, all patches in the second.
        {"out_hidden_size": HIDDEN, "window_size": 56, "fullatt_block_indexes": [1]},
        CLIP,
    ),
    "qwen3_vl": qwen(
        "Qwen3VLProcessor", 16, QWEN3_VL, {**QWEN3_VISION, "deepstack_visual_indexes": [0, 1]}, HALF
    ),
    "qwen3_vl_moe": qwen(
        "Qwen3VLProcessor",
        16,
        {**QWEN3_VL, **EXPERTS},
        {**QWEN3_VISION, "deepstack_visual_indexes": [0, 1]},
        HALF,
    ),
    "qwen3_5": qwen("Qwen3VLProcessor", 16, RECURRENT, QWEN3_VISION, HALF),
    "qwen3_5_moe": qwen(
        "Qwen3VLProcessor",
        16,
        {**RECURRENT, **EXPERTS, "shared_expert_intermediate_size": 32},
        QWEN3_VISION,
        HALF,
    ),
    "idefics3": Spec(processor="Idefics3Processor", **IDEFICS),
    "smolvlm": Spec(processor="SmolVLMProcessor", **IDEFICS),
    "internvl": Spec(
        processor="InternVLProcessor",
        image_processor="GotOcr2ImageProcessorPil",
        image_settings={"size": {"height": SIDE, "width": SIDE}, "max_patches": 4, **CLIP},
        text={"model_type": "qwen3"},
        vision={"image_size": [SIDE, SIDE], "patch_size": [PATCH, PATCH]},
        config={"image_token_id": "<IMG_CONTEXT>", "downsample_ratio": 0.5, "tie_word_embeddings": False},
        named_tokens={
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
        template=CHATML.replace("IMAGE", "{{ '<IMG_CONTEXT>\\n' }}"),
        processor_settings={"image_seq_length": 4},
    ),
    "gemma3": Spec(
        processor="Gemma3Processor",
        image_processor="Gemma3ImageProcessorPil",
        image_settings={"size": {"height": SIDE, "width": SIDE}, **HALF},
        # The window is shorter than the prompts, and than two images.
        text={"sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"]},
        vision={"vision_use_head": False},
        config={
            "mm_tokens_per_image": 4,
            "image_token_id": "<image_soft_token>",
            "boi_token_index": "<start_of_image>",
            "eoi_token_index": "<end_of_image>",
        },
        named_tokens={
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
            "image_token": "<image_soft_token>",
        },
        tokens=("<start_of_turn>", "<end_of_turn>"),
        plain_tokens=("\n", "\n\n", "\n\n\n", "\n\n\n\n"),
        template=GEMMA,
        processor_settings={"image_seq_length": 4},
        ends=("<end_of_turn>", "<|endoftext|>"),
    ),
    "llava_onevision": Spec(
        processor="LlavaOnevisionProcessor",
        image_processor="LlavaOnevisionImageProcessorPil",
        image_settings={
            "size": {"height": SIDE, "width": SIDE},
            "image_grid_pinpoints": [[SIDE * r, SIDE * c] for r in (1, 2, 3) for c in (1, 2, 3)],
            **HALF,
        },
        text={"model_type": "qwen2"},
        vision={"model_type": "siglip_vision_model", "vision_use_head": False},
        config={
            "image_token_id": "<image>",
            "video_token_id": "<video>",
            "vision_feature_select_strategy": "full",
            "vision_aspect_ratio": "anyres_max_4",
            "image_grid_pinpoints": [[SIDE * r, SIDE * c] for r in (1, 2, 3) for c in (1, 2, 3)],
            "tie_word_embeddings": False,
        },
        named_tokens={"image_token": "<image>", "video_token": "<video>"},
        template=IMAGES_FIRST,
        processor_settings={
            "num_image_tokens": 16,
            "vision_feature_select_strategy": "full",
            "vision_aspect_ratio": "anyres_max_4",
        },
    ),
    # Families that no file of the package knows.
    "glm4v": Spec(
        processor="Glm4vProcessor",
        image_processor="Glm4vImageProcessorPil",
        image_settings={"patch_size": PATCH, "merge_size": 2, "size": QWEN_SIZE, **CLIP},
        text=rope(mrope_section=[4, 6, 6], partial_rotary_factor=1.0),
        vision={**QWEN_VISION, "out_hidden_size": HIDDEN, "intermediate_size": 96},
        config={
            "image_token_id": "<|image|>",
            "video_token_id": "<|video|>",
            "image_start_token_id": "<|begin_of_image|>",
            "image_end_token_id": "<|end_of_image|>",
            "video_start_token_id": "<|begin_of_video|>",
            "video_end_token_id": "<|end_of_video|>",
        },
        named_tokens={"image_token": "<|image|>", "video_token": "<|video|>"},
        tokens=tuple(GLM_MARKS),
        template=CHATML.replace("IMAGE", "<|begin_of_image|><|image|><|end_of_image|>"),
    ),
    "aya_vision": Spec(
        processor="AyaVisionProcessor",
        image_processor="GotOcr2ImageProcessorPil",
        image_settings={"size": {"height": SIDE, "width": SIDE}, "max_patches": 4, **HALF},
        text={"model_type": "cohere2", "sliding_window": 8, "logit_scale": 0.25},
        vision={"model_type": "siglip_vision_model", "vision_use_head": False},
        config={
            "image_token_index": "<|IMG_PATCH|>",
            "downsample_factor": 2,
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
        },
        tokens=("<image>", *AYA_MARKS),
        template=CHATML.replace("IMAGE", "<image>"),
        processor_settings={"patch_size": PATCH, "img_size": SIDE, "downsample_factor": 2},
    ),
}


def build_folder(folder, family, tokenizer=None, num_rows=None):
    """A random model of a family and everything beside it, as `save_pretrained` writes them."""
    spec = SPECS[family]
    if tokenizer is None:
        tokenizer = AutoTokenizer.from_pretrained(
            tiny.checkpoint_path("easy"), extra_special_tokens=spec.named_tokens
        )
        tokenizer.add_special_tokens({"additional_special_tokens": list(spec.tokens)})
        tokenizer.add_tokens(list(spec.plain_tokens))
        tokenizer.bos_token = "<|endoftext|>"
    if spec.template is not None:
        tokenizer.chat_template = spec.template
    vocabulary = tokenizer.get_vocab()
    pad = vocabulary["<|endoftext|>"]
    config = AutoConfig.for_model(
        family,
        text_config={**TEXT, "vocab_size": num_rows or len(tokenizer), "pad_token_id": pad, **spec.text},
        vision_config={**VISION, **spec.vision},
        **{k: vocabulary.get(v, v) if isinstance(v, str) else v for k, v in spec.config.items()},
    )
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config)
    for weight in model.parameters():
        if (
            weight.ndim > 1 and not weight.any()
        ):  # Gemma's projection starts at zero and would hide every image
            torch.nn.init.normal_(weight, std=0.1)
    ends = [vocabulary[end] for end in spec.ends]
    model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=pad)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    getattr(transformers, spec.image_processor)(**spec.image_settings).save_pretrained(folder)
    if spec.processor_settings:
        settings = {"processor_class": spec.processor, **spec.processor_settings}
        (folder / "processor_config.json").write_text(json.dumps(settings))
    return folder
