"""From the names of checkpoint tensors to the names of a model's tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn

from app.loading.model_state import StateSlot, own_tensors


def map_weight_name(model: nn.Module, name: str) -> str | None:
    """The model's own name for checkpoint tensor `name`, before packing; None: not needed."""
    mapper = getattr(model, "map_weight_name", None)
    if mapper is None:
        return name
    mapped: str | None = mapper(name)
    return mapped


def convert_weights(
    model: nn.Module, weights: Iterable[tuple[str, torch.Tensor]]
) -> Iterable[tuple[str, torch.Tensor]]:
    """`weights` with those merged that `model` holds as one tensor, such as a layer's experts."""
    converter = getattr(model, "convert_weights", None)
    if converter is None:
        return weights
    converted: Iterable[tuple[str, torch.Tensor]] = converter(weights)
    return converted


def fused_place(model: nn.Module, name: str) -> tuple[str, str] | None:
    """(fused tensor, shard) for an unfused name: `...q_proj.weight` -> `...qkv_proj.weight`."""
    parts = name.split(".")
    for fused, shards in packed_modules(model).items():
        for position, part in enumerate(parts):
            if part not in shards:
                continue
            fused_name = ".".join((*parts[:position], fused, *parts[position + 1 :]))
            if part in _shard_slices(model, fused_name):
                return fused_name, part
    return None


def shard_rows(slot: StateSlot) -> Mapping[str, slice]:
    """shard -> its rows in the fused tensor; empty for a tensor that is not fused."""
    rows: Mapping[str, slice] = getattr(slot.module, "shard_slices", {})
    return rows


def checkpoint_names(model: nn.Module, slot: StateSlot) -> list[str]:
    """What a checkpoint calls the parts of `slot` that have not been loaded."""
    module_name, _, attribute = slot.name.rpartition(".")
    parent, _, own_name = module_name.rpartition(".")
    shards = shard_rows(slot)
    if own_name not in packed_modules(model) or not shards:
        return [slot.name]
    prefix = f"{parent}." if parent else ""
    return [f"{prefix}{shard}.{attribute}" for shard in shards if shard not in slot.loaded_shards]


def packed_modules(model: nn.Module) -> Mapping[str, Sequence[str]]:
    """fused module -> the checkpoint's modules that it holds, in order."""
    packed: Mapping[str, Sequence[str]] = getattr(model, "packed_modules_mapping", {})
    return packed


def _shard_slices(model: nn.Module, tensor_name: str) -> Mapping[str, slice]:
    prefix, _, attribute = tensor_name.rpartition(".")
    try:
        module = model.get_submodule(prefix)
    except AttributeError:
        return {}
    if attribute not in dict(own_tensors(module)):
        return {}
    rows: Mapping[str, slice] = getattr(module, "shard_slices", {})
    return rows
