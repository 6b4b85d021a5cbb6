"""Fills a model that was built on the meta device, one checkpoint tensor at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from app.loading.model_state import StateSlot, collect_state, first_names
from app.loading.weight_names import (
    checkpoint_names,
    convert_weights,
    fused_place,
    map_weight_name,
    shard_rows,
)

_NUM_NAMED = 5


def load_weights(
    model: nn.Module,
    weights: Iterable[tuple[str, torch.Tensor]],
    device: torch.device | None = None,
    *,
    module_name: str | None = None,
    has_own_names: bool = False,
    source: str = "the checkpoint",
) -> None:
    """Copy every checkpoint tensor of `weights` into its place in `model`.

    Names pass through the model's `map_weight_name` (None drops the tensor) and its
    `packed_modules_mapping` (the rows of a fused tensor are filled in place, at the module's
    `shard_slices`). Meta tensors get memory on `device` one at a time, in their own dtype.
    A model with `convert_weights` merges the tensors first that it holds as one.
    With `has_own_names` the names are the model's already, fused tensors included.
    With `module_name`, only the tensors that this module itself holds are expected and filled,
    and nothing is merged.
    Raises ValueError that names `source` and the missing, left-over, repeated and wrong-shaped
    tensors.
    """
    loader = _WeightLoader(model, device or torch.device("cpu"), module_name)
    if not has_own_names and module_name is None:
        weights = convert_weights(model, weights)
    for name, tensor in weights:
        own_name = name if has_own_names else map_weight_name(model, name)
        if own_name is not None:
            loader.load(name, own_name, tensor)
    loader.finish(source)


class _WeightLoader:
    """The state of one `load_weights`: what has arrived and what was wrong with it."""

    def __init__(self, model: nn.Module, device: torch.device, module_name: str | None) -> None:
        self._model = model
        self._device = device
        self._slots = collect_state(model)
        self._first_names = first_names(model, self._slots)
        if module_name is not None:
            module = model.get_submodule(module_name)
            self._slots = {n: slot for n, slot in self._slots.items() if slot.module is module}
        self._left_over: list[str] = []
        self._repeated: list[str] = []
        self._misshapen: list[str] = []

    def load(self, name: str, own_name: str, tensor: torch.Tensor) -> None:
        slot = self._slots.get(self._first_names.get(own_name, own_name))
        if slot is not None:
            self._copy_whole(name, slot, tensor)
            return
        fused_name, shard = fused_place(self._model, own_name) or ("", "")
        if fused_name in self._slots:
            self._copy_shard(name, self._slots[fused_name], shard, tensor)
        else:
            self._left_over.append(name)

    def _copy_whole(self, name: str, slot: StateSlot, tensor: torch.Tensor) -> None:
        if slot.is_loaded or slot.loaded_shards:
            self._repeated.append(name)
            return
        slot.is_loaded = True
        if self._fits(name, slot, slot.tensor.shape, tensor):
            slot.materialize(self._device).copy_(tensor)

    def _copy_shard(self, name: str, slot: StateSlot, shard: str, tensor: torch.Tensor) -> None:
        if slot.is_loaded or shard in slot.loaded_shards:
            self._repeated.append(name)
            return
        shards = shard_rows(slot)
        slot.loaded_shards.add(shard)
        slot.is_loaded = slot.loaded_shards == set(shards)
        rows = shards[shard]
        expected = torch.Size((rows.stop - rows.start, *slot.tensor.shape[1:]))
        if self._fits(name, slot, expected, tensor):
            slot.materialize(self._device)[rows].copy_(tensor)

    def _fits(self, name: str, slot: StateSlot, expected: torch.Size, tensor: torch.Tensor) -> bool:
        # Packed integers that meet a float tensor would be rounded without a word.
        is_float = slot.tensor.is_floating_point()
        if is_float != tensor.is_floating_point():
            self._misshapen.append(f"{name} (expected {slot.tensor.dtype}, got {tensor.dtype})")
        elif tensor.shape != expected:
            self._misshapen.append(f"{name} (expected {list(expected)}, got {list(tensor.shape)})")
        else:
            return True
        return False

    def finish(self, source: str) -> None:
        missing = [
            name
            for slot in self._slots.values()
            if not slot.is_loaded
            for name in checkpoint_names(self._model, slot)
        ]
        faults = (
            ("missing from the checkpoint", missing),
            ("left over, with no place in the model", self._left_over),
            ("given twice", self._repeated),
            ("of another shape or kind", self._misshapen),
        )
        found = [f"{fault}: {_first_few(names)}" for fault, names in faults if names]
        if found:
            raise ValueError(
                f"{source} does not fit {type(self._model).__name__}; " + "; ".join(found)
            )


def _first_few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NUM_NAMED} more" if len(names) > _NUM_NAMED else ""
    return ", ".join(names[:_NUM_NAMED]) + more
