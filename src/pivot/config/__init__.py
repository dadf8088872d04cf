"""The configuration: its settings, and how files, recipes and options are combined. Recipes are in `pivot.recipes`."""

from pivot.config.describe import describe
from pivot.config.loading import apply_settings, from_dict, overlay, to_dict
from pivot.config.sections import (
    BufferConfig,
    CheckpointConfig,
    Config,
    CorruptionConfig,
    DataConfig,
    EvalConfig,
    LogConfig,
    ModelConfig,
    PromptConfig,
    RewardConfig,
    RolloutConfig,
    SamplingConfig,
    TrainConfig,
)
from pivot.config.validation import validate
from pivot.setting_names import load_file

__all__ = [
    "BufferConfig",
    "CheckpointConfig",
    "Config",
    "CorruptionConfig",
    "DataConfig",
    "EvalConfig",
    "LogConfig",
    "ModelConfig",
    "PromptConfig",
    "RewardConfig",
    "RolloutConfig",
    "SamplingConfig",
    "TrainConfig",
    "apply_settings",
    "describe",
    "from_dict",
    "load_file",
    "overlay",
    "to_dict",
    "validate",
]
