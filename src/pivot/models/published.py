"""Sizes that families share, for configurations of published models whose files are not on this machine."""

from __future__ import annotations

from typing import Any

SO400M = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16}
SO400M |= {"image_size": 384, "patch_size": 14}
"""SigLIP's vision tower of 400M weights, which several families use."""


def text_settings(
    model_type: str,
    hidden: int,
    intermediate: int,
    layers: int,
    heads: int,
    key_heads: int,
    **more: Any,
) -> dict[str, Any]:
    """The sizes of a published language model, by the names that its configuration gives them."""
    return {
        "model_type": model_type,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        **more,
    }
