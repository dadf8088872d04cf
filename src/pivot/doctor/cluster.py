"""How much memory a configuration needs on each GPU of the verl engine: FSDP2's shards, and a rollout server."""

from __future__ import annotations

from pivot.config.sections import Config
from pivot.doctor.machine import Device
from pivot.doctor.memory import ITEM_BYTES, Estimate, Item, Phase, trained_parameters, update_items
from pivot.engines.verl.compose import GPU_SHARE, ClusterOptions, offloads, tensor_parallel
from pivot.models.architecture import Architecture

SHARD_BYTES, MOMENTS = 4, 8
"""A weight and its gradient are float32; AdamW has two moments."""
GATHERED_LAYERS = 2
"""The layer that is computed, and the next one on its way."""


def estimate_cluster(
    config: Config, model: Architecture, cluster: ClusterOptions, device: Device
) -> Estimate:
    """What each GPU holds. Items of the update are those of one device, because micro-batches are the same."""
    parts = (
        _shards(config, model, cluster, device),
        _server(config, model, cluster, device),
        _gathered(config, model),
    )
    # Ranks do not keep image features.
    update = [item for item in update_items(config, model) if item.name != "image features"]
    return Estimate(tuple(item for part in (*parts, update) for item in part if item.num_bytes))


def _shards(config: Config, model: Architecture, cluster: ClusterOptions, device: Device) -> list[Item]:
    ranks, trained = cluster.ranks, trained_parameters(config, model)
    weights = model.parameters + config.model.lora_rank * model.adapter_parameters
    away = offloads(config, cluster, device.total_bytes)
    kept: Phase = "training" if away else "always"
    note = f"over {ranks} ranks" + (", in the machine's memory while the server samples" if away else "")
    gradients = trained if config.model.lora_rank else trained // ranks
    items = [
        Item("weights", SHARD_BYTES * weights // ranks, kept, f"{weights / 1e9:.2f}B in float32, {note}"),
        Item(
            "optimizer", MOMENTS * trained // ranks, kept, f"AdamW over {trained / 1e9:.2f}B weights, {note}"
        ),
        Item(
            "gradients",
            SHARD_BYTES * gradients,
            "training",
            "float32; those of adapters are whole on each rank",
        ),
    ]
    if config.method.needs_reference and not config.model.lora_rank:
        items.append(
            Item(
                "reference model",
                SHARD_BYTES * weights // ranks,
                "host",
                "in the machine's memory between passes",
            )
        )
    return items


def _gathered(config: Config, model: Architecture) -> list[Item]:
    size, text = ITEM_BYTES[config.model.dtype], model.text
    layers = GATHERED_LAYERS * text.projections // text.layers * size
    ends = 2 * model.vocabulary * text.hidden * size
    return [Item("gathered weights", layers + ends, "update", "two layers, embeddings and head")]


def _server(config: Config, model: Architecture, cluster: ClusterOptions, device: Device) -> list[Item]:
    shared = tensor_parallel(config, cluster, device.total_bytes)
    own = 2 * model.parameters // shared
    note = f"{GPU_SHARE:.0%} of the GPU while it samples: {own / 2**30:.1f} GiB of weights, the rest is its cache; "
    note += f"{shared} GPUs per server"
    return [Item("rollout server", max(round(GPU_SHARE * device.total_bytes), own), "rollout", note)]
