"""Loads a policy by name (tiny models, a local folder, a run, the hub) and saves it into a folder."""

from __future__ import annotations

import logging
import os
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
from transformers.utils import logging as transformers_logging

from pivot import hub, tiny
from pivot.checkpoint_reader import check_model, lease
from pivot.durable import finished_checkpoints
from pivot.errors import UserError, did_you_mean
from pivot.models.encoding import PromptEncoder
from pivot.models.family import find_family
from pivot.models.model_config import BROKEN, check_memory, read_config
from pivot.models.policy import Policy
from pivot.models.quantization import dequantized, is_quantized, quantize_projections
from pivot.models.weights import check_weights, stored_weights

TINY = {"tiny": "easy", "tiny-hard": "hard"}


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
    prepare_for_training(model, options, device)
    model.to(device)
    return _assemble(model, tokenizer, processor, options)


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
        check_weights(name, report, stored_weights(path))


def prepare_forward(model: Any) -> None:
    """Replace the model's forwards by faster ones with the same results, in place."""
    find_family(model.config.model_type).prepare(model)


def load_tokenizer_only(folder: Path, options: ModelOptions | None = None) -> Policy:
    """A policy without weights, for engines that hold the weights themselves: it encodes and knows its tokens."""
    path = str(folder)
    with _quiet_transformers(), torch.device("meta"):
        config = read_config(path)
        model = AutoModelForImageTextToText.from_config(config)
        tokenizer = AutoTokenizer.from_pretrained(path)
        processor = _image_processor(config, path)
    with suppress(OSError):  # not every model has one
        model.generation_config = GenerationConfig.from_pretrained(path)
    return _assemble(model, tokenizer, processor, options or ModelOptions())


def _assemble(model: Any, tokenizer: Any, processor: Any, options: ModelOptions) -> Policy:
    family = find_family(model.config.model_type)
    family.limit_images(processor, options.min_pixels, options.max_pixels)
    return Policy(model, tokenizer, PromptEncoder(family(model, tokenizer, processor)))


def _image_processor(config: PretrainedConfig, path: str) -> Any:
    processor = find_family(config.model_type).image_processor_class.from_pretrained(path)
    for name in ("patch_size", "merge_size", "temporal_patch_size"):
        value = getattr(processor, name, 1)
        if not isinstance(value, int) or value < 1:
            raise UserError(
                f"the preprocessor_config.json of {path} sets {name} to {value!r}, expected at least 1"
            )
    return processor


def resolve_model(name: str) -> str:
    """A tiny model -> its folder; a run's folder -> the model of its newest checkpoint; anything else unchanged."""
    if name in TINY:
        return str(tiny.checkpoint_path(TINY[name]))
    folder = Path(name).expanduser()
    if (folder / "model" / "config.json").is_file():
        return str(folder / "model")
    if checkpoints := finished_checkpoints(folder):
        return str(checkpoints[0][1] / "model")
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise UserError(
            f"{name} holds no config.json and no checkpoints; give a model folder or a run's folder"
        )
    if folder.is_dir():
        return str(folder)
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith("/"):
        raise UserError(f"the model folder {name} does not exist")
    if "/" not in name:
        raise UserError(
            f"there is no model {name!r}.{did_you_mean(name, TINY)} Give {', '.join(TINY)}, a model folder, a run's "
            "folder or a hub id (owner/name)."
        )
    return name


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
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"model.device is {name}, but torch finds no GPU here; use model.device=cpu or auto")
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
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=options.trust_remote_code)
        processor = _image_processor(model.config, path)
    check_weights(name, report, model.state_dict().items())
    return model, tokenizer, processor


def _load_model(path: str, name: str, options: ModelOptions, **where: Any) -> tuple[Any, dict[str, Any]]:
    """The model, and what transformers reports about its weights."""
    trust = {"trust_remote_code": options.trust_remote_code}
    with _load_errors(name):
        check_memory(read_config(path, **trust), getattr(torch, options.dtype))
        loaded: Any = AutoModelForImageTextToText.from_pretrained(
            path,
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
