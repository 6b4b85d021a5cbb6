"""Load format layered: the model is filled and post-processed module by module."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from app.config.load_config import LoadConfig
from app.config.model_config import ModelConfig
from app.loading.base_loader import BaseModelLoader
from app.loading.checkpoint_files import find_checkpoint_files
from app.loading.model_state import collect_state, first_names
from app.loading.weight_iterators import iterate_weights
from app.loading.weight_names import convert_weights, fused_place, map_weight_name
from app.loading.weight_utils import load_weights

if TYPE_CHECKING:
    from app.models.base import BaseCausalLM

_HOOK = "process_module_after_loading"


class LayeredModelLoader(BaseModelLoader):
    """Holds plain weights of one module at a time where post-processing replaces them.

    The model must have the hook `process_module_after_loading(module, load_config)`, which
    post-processes the tensors that `module` itself holds. Files are read as format auto does.
    """

    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(load_config)
        # Its own copy: the record of another model must not see the rewritten format.
        self.load_config = replace(load_config, load_format="auto")

    def _fill(self, model: BaseCausalLM, model_config: ModelConfig, device: torch.device) -> None:
        hook = getattr(model, _HOOK, None)
        if hook is None:
            raise ValueError(
                f"load_format: layered needs {_HOOK} on the model, which "
                f"{type(model).__name__} lacks; use auto"
            )
        checkpoint = find_checkpoint_files(
            model_config.model_path, "auto", path_field=self.load_config.path_field
        )
        # Views of mapped files: nothing is read before a module asks for it, except for tensors
        # that the model has to merge.
        weights = dict(convert_weights(model, iterate_weights(checkpoint)))
        by_module = _group_by_module(model, weights)
        source = str(model_config.model_path)
        for name, module in _children_first(model, "", set()):
            own = by_module.get(name, {}).items()
            load_weights(model, own, device, module_name=name, source=source)
            hook(module, self.load_config)

    def _post_process(self, model: BaseCausalLM) -> None:
        """Done in `_fill`, module by module."""


def _children_first(
    module: nn.Module, name: str, visited: set[int]
) -> Iterator[tuple[str, nn.Module]]:
    """(name, module) of every module once, in the order of the model, children before parents."""
    visited.add(id(module))
    for child_name, child in module.named_children():
        if id(child) not in visited:
            path = f"{name}.{child_name}" if name else child_name
            yield from _children_first(child, path, visited)
    yield name, module


def _group_by_module(
    model: nn.Module, weights: dict[str, torch.Tensor]
) -> dict[str, dict[str, torch.Tensor]]:
    """module name -> its checkpoint tensors; left-over ones go to the root,
    where they are reported."""
    names = first_names(model, collect_state(model))
    groups: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
    for name, tensor in weights.items():
        own_name = map_weight_name(model, name)
        if own_name is None:
            continue
        if own_name in names:
            module = names[own_name].rpartition(".")[0]
        elif place := fused_place(model, own_name):
            module = place[0].rpartition(".")[0]
        else:
            module = ""
        groups[module][name] = tensor
    return groups
