"""Loads a policy by name (tiny models, a local folder, a run, the hub) and saves it into a folder."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from transformers import (
    AutoModelForImageTextToText,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.core_model_loading import revert_weight_conversion
from transformers.utils import cached_file
from transformers.utils import logging as transformers_logging

from pivot import hub
from pivot.checkpoint_reader import check_model, lease
from pivot.errors import UserError
from pivot.models.encoding import PromptEncoder
from pivot.models.family import find_family
from pivot.models.model_config import BROKEN, check_memory, read_config
from pivot.models.naming import resolve_model
from pivot.models.policy import Policy
from pivot.models.products import prepare_products
from pivot.models.quantization import dequantized, is_quantized, quantize_projections
from pivot.models.weights import check_stored_types, check_weights, stored_weights

PROCESSOR_CONFIG = "processor_config.json"


@dataclass(frozen=True)
class ModelOptions:
    """How a model is held in memory: the fields of a configuration's `model` section."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    device: str = "auto"
    attention: str = "sdpa"
    min_pixels: int | None = None
    max_pixels: int | None = None
    freeze_vision: bool = False
    lora_rank: int = 0
    quantize: Literal["nf4"] | None = None
    gradient_checkpointing: bool = False
    trust_remote_code: bool = False


def load_policy(name: str, options: ModelOptions | None = None) -> Policy:
    """The model of that name, ready for scoring and rollouts.

    Example:
        load_policy("tiny"); load_policy("Qwen/Qwen2.5-VL-3B-Instruct", ModelOptions(dtype="bfloat16"))
    """
    options = options or ModelOptions()
    path = cached_if_offline(resolve_model(name))
    with lease(Path(path)), _quiet_transformers():
        check_model(Path(path))
        model, tokenizer, processor = _load_parts(path, name, options)
    prepare_forward(model)
    device = pick_device(options.device)
    if device.type == "cpu":
        prepare_products(model)
    prepare_for_training(model, options, device)
    model.to(device)
    policy = _assemble(model, tokenizer, processor, path, options)
    policy.family.check_forward(model)
    return policy


def check_folder(name: str, options: ModelOptions | None = None) -> None:
    """Check the weights of a local model that another library will load; a hub id is left to that library.

    Reads every weight once and keeps none.
    """
    path = Path(resolve_model(name))
    if not path.is_dir():
        return
    with lease(path), _quiet_transformers():
        check_model(path)
        _, report = _load_model(str(path), name, options or ModelOptions(), device_map="meta")
        check_stored_types(name, path)
        check_weights(name, report, stored_weights(path))


def check_shardable(name: str) -> None:
    """Refuse a local model of a family that an engine with sharded weights cannot run."""
    path = Path(resolve_model(name))
    if path.is_dir():
        check_encodes_apart(read_config(str(path)).model_type)


def check_encodes_apart(model_type: str) -> None:
    """A UserError for families that only run as a whole, which an engine with sharded weights cannot do."""
    if not find_family(model_type).encodes_apart:
        raise UserError(
            f"{model_type} models have no family of their own here and train on one device alone; use --engine local"
        )


def prepare_forward(model: Any) -> None:
    """Replace the model's forwards by faster ones with the same results, in place."""
    find_family(model.config.model_type).prepare(model)


def load_tokenizer_only(folder: Path, options: ModelOptions | None = None) -> Policy:
    """A policy without weights, for engines that hold the weights themselves: it encodes and knows its tokens."""
    path = str(folder)
    with _quiet_transformers(), torch.device("meta"):
        config = read_config(path)
        model = AutoModelForImageTextToText.from_config(config)
        tokenizer = _tokenizer(path, config=config)
        processor = _image_processor(config, path)
    with suppress(OSError):  # not every model has one
        model.generation_config = GenerationConfig.from_pretrained(path)
    return _assemble(model, tokenizer, processor, path, options or ModelOptions())


def _assemble(model: Any, tokenizer: Any, processor: Any, path: str, options: ModelOptions) -> Policy:
    found = find_family(model.config.model_type)
    found.limit_images(processor, options.min_pixels, options.max_pixels)
    family = found(model, tokenizer, processor)
    family.processor_config = _processor_config(path)
    return Policy(model, tokenizer, PromptEncoder(family))


def _image_processor(config: PretrainedConfig, path: str) -> Any:
    return find_family(config.model_type).load_image_processor(path)


def _tokenizer(path: str, **options: Any) -> Any:
    """With the chat template of the model's processor, where that has a file of its own."""
    tokenizer: Any = AutoTokenizer.from_pretrained(path, **options)
    template = _json_file(path, "chat_template.json").get("chat_template")
    if isinstance(template, str):
        tokenizer.chat_template = template
    return tokenizer


def _processor_config(path: str) -> dict[str, Any]:
    """What processor_config.json says beside the settings of images and videos."""
    found = _json_file(path, PROCESSOR_CONFIG)
    return {name: value for name, value in found.items() if not name.endswith("_processor")}


def _json_file(path: str, name: str) -> dict[str, Any]:
    """An optional file of a model; empty if it has none."""
    file = cached_file(
        path,
        name,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    found = {} if file is None else json.loads(Path(file).read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise UserError(f"the {name} of {path} holds {type(found).__name__}, expected an object")
    return found


def cached_if_offline(path: str) -> str:
    """If the hub cannot be reached, a hub id's folder in the local cache, without retries; else the path unchanged."""
    if Path(path).is_dir() or hub.is_reachable():
        return path
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return snapshot_download(path, local_files_only=True)
    except (LocalEntryNotFoundError, HFValidationError) as missing:
        raise UserError(
            f"the model {path!r} is neither a local folder nor in the local cache, and the hub cannot be reached; run "
            f"`hf download {path} --local-dir DIR` on a machine with network access and give DIR instead of the hub id."
        ) from missing


def file_limits(folder: Path) -> tuple[int, int]:
    """Smallest and largest image area, in pixels, according to the files of a model's folder."""
    try:
        with _quiet_transformers():
            config = read_config(str(folder))
            processor = _image_processor(config, str(folder))
    except (OSError, ValueError) as cause:
        reason = str(cause).strip().splitlines()[0].rstrip(".:")
        raise UserError(
            f"cannot read how {folder} resizes images ({reason}); it needs a preprocessor_config.json"
        ) from cause
    return find_family(config.model_type).image_limits(processor)


def pick_device(name: str) -> torch.device:
    """`auto`, `cpu`, `cuda` or `cuda:N`, the value of `model.device` or `--device`."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if re.fullmatch(r"cpu|cuda(:\d+)?", name) is None:
        raise UserError(f"the device is {name!r}, but must be auto, cpu, cuda or cuda:N.")
    if name != "cpu" and not torch.cuda.is_available():
        raise UserError(f"the device is {name}, but torch finds no GPU here; use cpu or auto.")
    return torch.device(name)


def save_policy(policy: Policy, folder: Path) -> None:
    """An ordinary Hugging Face folder: weights, config, tokenizer, image processor. Adapters are merged in."""
    save_with_weights(policy, merged_state(policy.model), folder)


def save_with_weights(policy: Policy, weights: dict[str, torch.Tensor], folder: Path) -> None:
    """The same with weights from elsewhere."""
    with _quiet_transformers():
        policy.model.save_pretrained(folder, state_dict=weights)
        policy.tokenizer.save_pretrained(folder)
        policy.family.image_processor.save_pretrained(folder)
    if policy.family.processor_config:
        text = json.dumps(policy.family.processor_config, indent=2)
        (folder / PROCESSOR_CONFIG).write_text(text + "\n", encoding="utf-8")


def merged_state(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The weights of a plain model; low-rank adapters are merged into copies, the model itself does not change."""
    return dict(_merged_weights(model))


@torch.no_grad()
def saved_weights(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights one by one, merged and under the names that `save_policy` writes; only one merged copy at a time."""
    for name, value in _merged_weights(model):
        yield from revert_weight_conversion(model, {name: value}).items()


def _merged_weights(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    modules: dict[str, Any] = dict(model.named_modules())
    for name, value in model.state_dict().items():
        owner, _, rest = name.partition(".base_layer.weight")
        if ".lora_" in name or rest:  # `rest`: the scales of a quantized weight
            continue
        if name.endswith(".base_layer.weight"):
            layer = modules[owner]
            base = dequantized(layer.base_layer).to(model.dtype) if is_quantized(layer.base_layer) else value
            value = base + layer.get_delta_weight("default")
        yield name.replace(".base_layer.", "."), value


def _load_parts(path: str, name: str, options: ModelOptions) -> tuple[Any, Any, Any]:
    model, report = _load_model(path, name, options)
    with _load_errors(name):
        tokenizer = _tokenizer(path, config=model.config, trust_remote_code=options.trust_remote_code)
        processor = _image_processor(model.config, path)
    check_stored_types(name, Path(path))
    check_weights(name, report, model.state_dict().items())
    return model, tokenizer, processor


def _load_model(path: str, name: str, options: ModelOptions, **where: Any) -> tuple[Any, dict[str, Any]]:
    """The model, and what transformers reports about its weights."""
    trust = {"trust_remote_code": options.trust_remote_code}
    with _load_errors(name):
        config = read_config(path, **trust)
        check_memory(config, getattr(torch, options.dtype))
        loaded: Any = AutoModelForImageTextToText.from_pretrained(
            path,
            config=config,
            dtype=getattr(torch, options.dtype),
            attn_implementation=options.attention,
            use_safetensors=True,  # never a pickle
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are reported, and `check_weights` names them
            **trust,
            **where,
        )
        return loaded


@contextmanager
def _load_errors(name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, RuntimeError, SafetensorError, UserError, *BROKEN) as cause:
        reason = (str(cause).strip() or type(cause).__name__).splitlines()[0].rstrip(".:")
        raise UserError(
            f"cannot load the model {name!r} ({reason}); give a Hugging Face folder, a run's folder, a hub id that "
            "this machine can reach or has cached, or `tiny`"
        ) from cause


def prepare_for_training(model: PreTrainedModel, options: ModelOptions, device: torch.device) -> None:
    """Choose what is trained, add adapters, quantize; quantized weights move to `device`."""
    model.requires_grad_(True)
    if options.freeze_vision:
        for parameter in find_family(model.config.model_type).vision_parameters(model):
            parameter.requires_grad_(False)
    if options.quantize is not None:
        quantize_projections(model, device)
    if options.lora_rank:
        _add_adapters(model, options.lora_rank)
    if options.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.eval()


def _add_adapters(model: PreTrainedModel, rank: int) -> None:
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as cause:
        raise UserError(
            "model.lora_rank needs peft; install it with: pip install 'pivot-rl[lora]'"
        ) from cause
    targets = find_family(model.config.model_type).adapter_targets()
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets), model)
    for name, parameter in model.named_parameters():
        if ".lora_" in name:  # peft takes float32 where the base is quantized
            parameter.data = parameter.data.to(model.dtype)


class _quiet_transformers:
    """Silences transformers' progress bars and warnings while a model is loaded or saved."""

    def __enter__(self) -> None:
        self._level = transformers_logging.get_verbosity()
        transformers_logging.set_verbosity(logging.ERROR)
        if "HF_HUB_DISABLE_PROGRESS_BARS" not in os.environ:
            transformers_logging.disable_progress_bar()

    def __exit__(self, *_: object) -> None:
        transformers_logging.set_verbosity(self._level)
