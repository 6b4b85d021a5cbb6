"""Runs a modelling code once on the meta device to see how each of its layers attends."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from app.models.transformers_attention import TransformersAttention
from app.models.transformers_support import refusal

_NUM_TOKENS = 2
# What attention functions are handed besides the tensors and what this engine takes care of.
_KNOWN_ARGUMENTS = frozenset({"dropout", "scaling", "sliding_window", "softcap", "position_ids"})


def trace_attention(
    base_model: nn.Module, num_layers: int, architecture: str
) -> dict[nn.Module, TransformersAttention]:
    """attention module -> its geometry, in the order of the layers.

    `base_model` is on the meta device, so nothing is computed. Reading the geometry off the calls
    needs no knowledge of attribute names, and shows what would go wrong silently: layers that do
    not attend, masks and biases of the model's own, attention sinks. Raises ValueError for those.
    """
    if "position_ids" not in inspect.signature(type(base_model).forward).parameters:
        raise refusal(architecture, "its forward does not take position_ids")
    layers: dict[nn.Module, TransformersAttention] = {}

    def attend(
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: object,
        arguments: Mapping[str, Any],
    ) -> torch.Tensor:
        _check_call(module, attention_mask, arguments, architecture)
        if module in layers:
            raise refusal(architecture, "a layer attends more than once in a forward")
        key_dim = key.shape[-1]
        scaling = arguments.get("scaling")
        layers[module] = TransformersAttention(
            layer_id=len(layers),
            num_heads=query.shape[1],
            num_kv_heads=key.shape[1],
            key_dim=key_dim,
            value_dim=value.shape[-1],
            scaling=key_dim**-0.5 if scaling is None else float(scaling),
            sliding_window=arguments.get("sliding_window"),
            logit_softcap=arguments.get("softcap"),
        )
        return query.new_empty(1, query.shape[2], query.shape[1], value.shape[-1])

    tokens = torch.zeros((1, _NUM_TOKENS), dtype=torch.int64, device="meta")
    try:
        base_model(input_ids=tokens, position_ids=tokens, use_cache=False, draftscope_attend=attend)
    except ValueError:
        raise
    # Whatever modelling code raises when it cannot run without data or does not hand the keyword
    # argument down to its attention.
    except Exception as error:
        problem = " ".join(str(error).split())[:200]
        raise refusal(
            architecture, f"its forward cannot be traced ({type(error).__name__}: {problem})"
        ) from error
    if len(layers) != num_layers:
        raise refusal(
            architecture, f"{len(layers)} layers attend, but it has num_hidden_layers {num_layers}"
        )
    return layers


def _check_call(
    module: nn.Module, attention_mask: object, arguments: Mapping[str, Any], architecture: str
) -> None:
    if arguments.get("s_aux") is not None:
        raise refusal(architecture, "its attention has sinks, so it is not softmax over the keys")
    is_causal = arguments.get("is_causal")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    if not is_causal:
        raise refusal(architecture, "its attention is not causal (an encoder)")
    if attention_mask is not None or arguments.get("attention_mask") is not None:
        raise refusal(architecture, "it adds a mask or bias of its own to the attention scores")
    unknown = sorted(
        name
        for name, value in arguments.items()
        if name not in _KNOWN_ARGUMENTS and value is not None and value is not False
    )
    if unknown:
        raise refusal(
            architecture, f"its attention takes {', '.join(unknown)}, which is not supported"
        )
