"""Values of the tensors that no checkpoint holds, for a transformers model built on meta."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

_STATIC = "default"


class FixedRope:
    """Rotary embeddings that would change with the longest position of each forward.

    transformers recomputes dynamic NTK and LongRoPE frequencies from what happens to be in a batch,
    after which the keys in the cache no longer fit. Here they are fixed for the context length of
    the model, so that a request's tokens depend on no other request.
    """

    def __init__(self, model: nn.Module) -> None:
        self._kinds = list(_changing_ropes(model))
        for module, layer_type, _ in self._kinds:
            _set_rope_type(module, layer_type, _STATIC)

    def compute(self, context_len: int) -> None:
        """Fill the frequencies, as for a sequence of `context_len` tokens."""
        for module, layer_type, rope_type in self._kinds:
            arguments = {} if layer_type is None else {"layer_type": layer_type}
            frequencies, _ = ROPE_INIT_FUNCTIONS[rope_type](
                module.config, torch.device("cpu"), seq_len=context_len, **arguments
            )
            name = "inv_freq" if layer_type is None else f"{layer_type}_inv_freq"
            module._buffers[name] = frequencies


def compute_buffers(model: PreTrainedModel) -> None:
    """Give every non-persistent buffer memory on the CPU and its value.

    The values come from the architecture's own weight initialisation, which is what transformers
    relies on too when it loads a checkpoint.
    """
    # The caller may be inside a meta device context.
    initialize: Any = model._init_weights
    with torch.device("cpu"), torch.no_grad():
        for module in model.modules():
            if _make_room(module):
                initialize(module)


def _make_room(module: nn.Module) -> bool:
    """Whether `module` has buffers that no checkpoint holds; they now have memory on the CPU."""
    found = False
    for name in module._non_persistent_buffers_set:
        buffer = module._buffers.get(name)
        if buffer is not None:
            module._buffers[name] = torch.empty_like(buffer, device="cpu")
            found = True
    return found


def _changing_ropes(model: nn.Module) -> Iterator[tuple[Any, str | None, str]]:
    for module in model.modules():
        rope_type = getattr(module, "rope_type", None)
        kinds = rope_type if isinstance(rope_type, dict) else {None: rope_type}
        for layer_type, kind in list(kinds.items()):
            if isinstance(kind, str) and ("dynamic" in kind or kind == "longrope"):
                yield module, layer_type, kind


def _set_rope_type(module: Any, layer_type: str | None, rope_type: str) -> None:
    if layer_type is None:
        module.rope_type = rope_type
    else:
        module.rope_type = {**module.rope_type, layer_type: rope_type}
