"""Activation functions by the names that checkpoint configs use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MappingProxyType

import torch
from torch.nn import functional

Activation = Callable[[torch.Tensor], torch.Tensor]

_gelu_tanh = partial(functional.gelu, approximate="tanh")
_ACTIVATIONS: MappingProxyType[str, Activation] = MappingProxyType(
    {
        "silu": functional.silu,
        "swish": functional.silu,
        "gelu": functional.gelu,
        "gelu_pytorch_tanh": _gelu_tanh,
        "relu": functional.relu,
    }
)


def activation_function(name: str) -> Activation:
    """The function called `name`; ValueError that lists the known ones."""
    if name not in _ACTIVATIONS:
        raise ValueError(f"hidden_act {name!r} is not one of {', '.join(sorted(_ACTIVATIONS))}")
    return _ACTIVATIONS[name]
