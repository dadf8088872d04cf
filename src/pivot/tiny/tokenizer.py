"""A byte-level BPE of 640 tokens: any text round-trips, every digit is one token, the template's sentences are two."""

from __future__ import annotations

from collections.abc import Iterator

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from pivot.data import template
from pivot.tiny import procedural

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)

VOCAB_SIZE = 640
"""Including bytes, merges, template sentences and special tokens."""

CORPUS_PROBLEMS = 200
"""Per task; enough to contain every word of its questions and chains."""

_FORMAT = r" ?</?think>| ?\\boxed\{"
_QWEN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

CHAT_TEMPLATE = """\
{%- if messages[0]['role'] != 'system' -%}
<|im_start|>system
You are a helpful assistant.<|im_end|>
{% endif -%}
{%- for message in messages -%}
<|im_start|>{{ message['role'] }}
{% if message['content'] is string -%}
{{ message['content'] }}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}
<|vision_start|><|image_pad|><|vision_end|>
{%- elif part['type'] == 'video' -%}
<|vision_start|><|video_pad|><|vision_end|>
{%- else -%}
{{ part['text'] }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Train the tokenizer on the procedural tasks; deterministic."""
    sentences = (template.SYSTEM, template.INSTRUCTION)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(f"{_FORMAT}|{_QWEN}"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(sentences) - len(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_task_corpus(), trainer)
    # Every prompt contains these two sentences; as added tokens (not special ones) they are one token each.
    tokenizer.add_tokens([AddedToken(sentence, normalized=False) for sentence in sentences])
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL_TOKENS),
        padding_side="left",
        model_max_length=4096,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def _task_corpus() -> Iterator[str]:
    yield "system\nuser\nassistant\n"
    for task in procedural.TASKS:
        for index in range(CORPUS_PROBLEMS):
            prompt = procedural.make(task, "pretrain", index)
            yield f"{prompt.question.removeprefix(template.IMAGE_MARK)}\n\n"
            yield procedural.solution(prompt)
            yield procedural.shortcut(prompt)
