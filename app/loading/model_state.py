"""The tensors of a model that a checkpoint fills: parameters and persistent buffers."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

_MAPPED_FROM_BYTES = 1 << 16


@dataclass(slots=True)
class StateSlot:
    """One tensor, every place where the model holds it, and what of it has been loaded."""

    name: str
    owners: list[tuple[nn.Module, str]]
    is_loaded: bool = False
    loaded_shards: set[str] = field(default_factory=set)

    @property
    def module(self) -> nn.Module:
        return self.owners[0][0]

    @property
    def tensor(self) -> torch.Tensor:
        module, attribute = self.owners[0]
        tensor: torch.Tensor = getattr(module, attribute)
        return tensor

    def materialize(self, device: torch.device) -> torch.Tensor:
        """Memory for the tensor, allocated only now, so that loading never holds two models."""
        tensor = self.tensor
        if not tensor.is_meta:
            return tensor.detach()
        memory = allocate(tensor.shape, tensor.dtype, device)
        self.replace(memory)
        return memory

    def replace(self, memory: torch.Tensor) -> None:
        """Put `memory` in place of the tensor in every module that holds it."""
        is_parameter = isinstance(self.tensor, nn.Parameter)
        parameter = nn.Parameter(memory, requires_grad=False) if is_parameter else None
        for module, attribute in self.owners:
            # Written to the dictionaries: tied weights must stay one object in every module.
            if parameter is not None:
                module._parameters[attribute] = parameter
            else:
                module._buffers[attribute] = memory


def allocate(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """An uninitialised tensor that gives its pages back when it is dropped.

    Large ones on the CPU are mapped by themselves: on the heap, weights that are packed and
    dropped, and what a loader holds for a moment between two weights, leave holes that add up to
    half a model.
    """
    num_bytes = shape.numel() * dtype.itemsize
    if device.type != "cpu" or num_bytes < _MAPPED_FROM_BYTES or not hasattr(mmap, "MAP_ANONYMOUS"):
        return torch.empty(shape, dtype=dtype, device=device)
    pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype).view(shape)


def collect_state(model: nn.Module) -> dict[str, StateSlot]:
    """name -> slot; a tensor that several modules share appears once, under its first name."""
    slots: dict[str, StateSlot] = {}
    by_identity: dict[int, StateSlot] = {}
    for name, module, attribute, tensor in _walk(model):
        slot = by_identity.get(id(tensor))
        if slot is None:
            slot = by_identity[id(tensor)] = slots[name] = StateSlot(name, [])
        slot.owners.append((module, attribute))
    return slots


def first_names(model: nn.Module, slots: Mapping[str, StateSlot]) -> dict[str, str]:
    """Every name of every tensor -> the name of its slot."""
    owner_names = {
        (id(module), attribute): slot.name
        for slot in slots.values()
        for module, attribute in slot.owners
    }
    return {name: owner_names[id(module), attr] for name, module, attr, _ in _walk(model)}


def own_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters and persistent buffers that `module` itself holds."""
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield name, parameter
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent_buffers_set:
            yield name, buffer


def _walk(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, torch.Tensor]]:
    for prefix, module in model.named_modules():
        for attribute, tensor in own_tensors(module):
            yield (f"{prefix}.{attribute}" if prefix else attribute), module, attribute, tensor
