"""From the tensors of a checkpoint to the parameters of transformers' modelling code."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    build_glob_alternation,
    rename_source_key,
)

# Buffers of old checkpoints that transformers computes today.
_COMPUTED = (r"rotary_emb\.inv_freq$", r"(^|\.)position_ids$", r"\.attn\.masked_bias$")


class CheckpointNames:
    """transformers' own table of how checkpoints of an architecture differ from its modules."""

    def __init__(self, model: PreTrainedModel) -> None:
        transforms = get_model_conversion_mapping(model)
        self._renamings = [item for item in transforms if isinstance(item, WeightRenaming)]
        self._converters = [item for item in transforms if isinstance(item, WeightConverter)]
        self._base_model_prefix = model.base_model_prefix
        self._parameters: dict[str, Any] = dict(model.state_dict(keep_vars=True))
        self._tied = frozenset(model.all_tied_weights_keys)
        unused = (*(model._keys_to_ignore_on_load_unexpected or ()), *_COMPUTED)
        self._unused = re.compile("|".join(f"(?:{pattern})" for pattern in sorted(unused)))

    def map(self, name: str) -> str | None:
        """The parameter that checkpoint tensor `name` fills; None when it is not needed."""
        mapped, _ = self._rename(name, [])
        if mapped in self._tied:
            return None
        if mapped not in self._parameters and self._unused.search(name):
            return None
        return mapped

    def _rename(self, name: str, converters: list[Any]) -> tuple[str, str | None]:
        mapped, pattern = rename_source_key(
            name, self._renamings, converters, self._base_model_prefix, self._parameters
        )
        if mapped in self._parameters or name not in self._parameters:
            return mapped, pattern
        # A name of today that a rule for old checkpoints matched by accident.
        return name, None

    def convert(
        self, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Merge tensors that the modelling code holds as one (the experts of a layer).

        A merged tensor leaves as soon as its parts are complete, so that no more than one layer is
        held at a time when the checkpoint stores layers one behind the other.
        """
        by_pattern = {p: item for item in self._converters for p in item.source_patterns}
        pending: dict[str, Any] = {}
        num_missing: dict[str, int] = {}
        for name, tensor in weights:
            target, pattern = self._rename(name, self._converters)
            if pattern is None:
                yield name, tensor
                continue
            if target not in pending:
                pending[target] = copy.deepcopy(by_pattern[pattern])
                num_missing[target] = self._num_elements(target, pending[target])
            pending[target].add_tensor(target, name, pattern, _Ready(tensor))
            num_missing[target] -= tensor.numel()
            if num_missing[target] == 0:
                yield from self._merge(target, pending.pop(target))
        for target in pending:
            raise ValueError(f"the checkpoint holds only a part of the tensors that make {target}")

    def _num_elements(self, target: str, converter: Any) -> int:
        first = converter.target_patterns[0]
        names = [target.replace(first, other) for other in converter.target_patterns]
        return sum(self._parameters[name].numel() for name in names if name in self._parameters)

    def _merge(self, target: str, converter: Any) -> Iterator[tuple[str, torch.Tensor]]:
        for name, value in converter.convert(target).items():
            yield name, value[0] if isinstance(value, list) else value


class _Ready:
    """A tensor in the form of a deferred read, which is what converters collect."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __call__(self) -> torch.Tensor:
        return self._tensor


def keep_in_float32(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Give the parameters that an architecture wants in float32 that dtype, still on meta."""
    plan = model._get_dtype_plan(dtype)
    if not plan:
        return
    pattern, _, _ = build_glob_alternation(list(plan))
    for prefix, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and pattern.search(f"{prefix}.{name}"):
                module._parameters[name] = torch.nn.Parameter(
                    parameter.to(torch.float32), requires_grad=False
                )
        for name, buffer in module._buffers.items():
            if buffer is not None and pattern.search(f"{prefix}.{name}"):
                module._buffers[name] = buffer.to(torch.float32)
