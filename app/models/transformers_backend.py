"""Any decoder-only model of transformers with softmax attention, through its modelling code."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from app.attention.forward_batch import ForwardBatch
from app.config.model_config import ModelConfig
from app.models.base import BaseCausalLM
from app.models.transformers_attention import ATTENTION_NAME, register_attention
from app.models.transformers_buffers import FixedRope, compute_buffers
from app.models.transformers_head import TransformersHead
from app.models.transformers_support import check_supported, refusal
from app.models.transformers_trace import trace_attention
from app.models.transformers_weights import CheckpointNames, keep_in_float32

_logger = logging.getLogger(__name__)

# The one implementation of expert layers that runs on the meta device.
_TRACEABLE_EXPERTS = "batched_mm"


class TransformersForCausalLM(BaseCausalLM):
    """Attention and KV cache are this engine's; everything else is transformers' code.

    Parameters have the names they have in transformers. Learned positions are looked up as given:
    whoever makes the batch keeps them inside the table.
    """

    def __init__(self, model_config: ModelConfig, linear_kernel: str = "torch") -> None:
        super().__init__(model_config, linear_kernel)
        architecture = model_config.architecture
        if self.linear_kernel != "torch":
            _logger.warning(
                "prefill_kernel %s has no effect on %s: it runs through transformers' own code",
                self.linear_kernel,
                architecture,
            )
        causal_lm = _build(model_config)
        base_model_name = _base_model_name(causal_lm, architecture)
        base_model = causal_lm.get_submodule(base_model_name)
        rope = FixedRope(causal_lm)
        attention = _trace(causal_lm, base_model, model_config)
        self._head = TransformersHead(causal_lm, base_model_name)
        self._head.check(model_config.hidden_size, model_config.vocab_size, architecture)
        compute_buffers(causal_lm)
        rope.compute(model_config.context_len)
        for module, layer in attention.items():
            module.add_module("paged_attention", layer)
        for name, child in causal_lm.named_children():
            self.add_module(name, child)
        self._base_model_name = base_model_name
        self._names = CheckpointNames(causal_lm)

    @staticmethod
    def check_supported(hf_config: PretrainedConfig) -> None:
        """Raise ValueError for an architecture whose config tells that it cannot run here."""
        check_supported(hf_config)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        output = self.get_submodule(self._base_model_name)(
            input_ids=batch.input_ids[None],
            position_ids=batch.positions[None],
            use_cache=False,
            draftscope_attend=partial(_attend, batch),
        )
        hidden: torch.Tensor = output[0][0]
        return hidden

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._head(hidden)

    def map_weight_name(self, name: str) -> str | None:
        return self._names.map(name)

    def convert_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Merge checkpoint tensors that transformers' code holds as one."""
        return self._names.convert(weights)


def _attend(
    batch: ForwardBatch,
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: object,
    arguments: Mapping[str, Any],
) -> torch.Tensor:
    output: torch.Tensor = module.get_submodule("paged_attention")(query, key, value, batch)
    return output


def _build(model_config: ModelConfig) -> PreTrainedModel:
    """The ForCausalLM of transformers on the meta device, over a config of its own."""
    if model_config.quantization is not None:
        raise refusal(
            model_config.architecture,
            f"quantization {model_config.quantization} needs a native architecture",
        )
    model_class = check_supported(model_config.hf_config)
    # Building writes to the config, and the model keeps it.
    hf_config: PretrainedConfig = copy.deepcopy(model_config.hf_config)
    register_attention()
    with torch.device("meta"):
        build: Any = model_class._from_config
        causal_lm: PreTrainedModel = build(
            hf_config, dtype=model_config.dtype, attn_implementation=ATTENTION_NAME
        )
    causal_lm.train(False).requires_grad_(False)
    # This module takes over the children, and would miss what they do not hold.
    if causal_lm._parameters or causal_lm._buffers:
        raise refusal(model_config.architecture, "its head holds tensors outside of its modules")
    keep_in_float32(causal_lm, model_config.dtype)
    return causal_lm


def _base_model_name(causal_lm: PreTrainedModel, architecture: str) -> str:
    for name in (causal_lm.base_model_prefix, "model"):
        if isinstance(getattr(causal_lm, name, None), nn.Module):
            return name
    raise refusal(architecture, "it has no base model without a head")


def _trace(
    causal_lm: PreTrainedModel, base_model: nn.Module, model_config: ModelConfig
) -> dict[nn.Module, Any]:
    config: Any = causal_lm.config
    experts = config._experts_implementation
    config._experts_implementation = _TRACEABLE_EXPERTS
    try:
        return trace_attention(
            base_model, model_config.num_hidden_layers, model_config.architecture
        )
    finally:
        config._experts_implementation = experts
