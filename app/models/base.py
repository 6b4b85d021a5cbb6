"""What every causal language model offers to the loader and to the runner."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import nn

from app.attention.forward_batch import ForwardBatch
from app.config.load_config import LoadConfig
from app.config.model_config import ModelConfig
from app.kernels.prepacked_linear import ONEDNN_BF16
from app.layers.attention import PagedAttention
from app.memory.token_to_kv_pool import KVGeometry

_logger = logging.getLogger(__name__)


class BaseCausalLM(nn.Module):
    """A decoder-only model, built under `torch.device("meta")` and filled by a loader.

    `packed_modules_mapping`: fused module -> the checkpoint's modules that it holds, in order.
    """

    packed_modules_mapping: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})

    def __init__(self, model_config: ModelConfig, linear_kernel: str = "torch") -> None:
        super().__init__()
        self.model_config = model_config
        if linear_kernel == ONEDNN_BF16 and model_config.dtype != torch.bfloat16:
            _logger.warning(
                "prefill_kernel %s has no effect on %s: its dtype is %s",
                linear_kernel,
                model_config.model_path,
                model_config.dtype,
            )
            linear_kernel = "torch"
        self.linear_kernel = linear_kernel

    @abstractmethod
    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Hidden states behind the final norm, `[T, hidden_size]`."""
        ...

    @abstractmethod
    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """`hidden [R, hidden_size]` -> `[R, vocab_size]` float32."""
        ...

    def map_weight_name(self, name: str) -> str | None:
        """The module's name for a checkpoint tensor, before packing; None: known, not needed."""
        return name

    @cached_property
    def kv_geometry(self) -> tuple[KVGeometry, ...]:
        """The KV cache's shape in each layer, by layer id."""
        layers = sorted(
            (module for module in self.modules() if isinstance(module, PagedAttention)),
            key=lambda layer: layer.layer_id,
        )
        assert [layer.layer_id for layer in layers] == list(range(len(layers)))
        return tuple(KVGeometry(layer.num_kv_heads, layer.head_dim) for layer in layers)

    def process_weights_after_loading(self, load_config: LoadConfig) -> None:
        """Let every module settle its weights: pack them, unpack quantised ones. Called once."""
        for module in self.modules():
            self.process_module_after_loading(module, load_config)

    def process_module_after_loading(self, module: nn.Module, load_config: LoadConfig) -> None:
        """The same for what `module` itself holds (load format layered)."""
        process = getattr(module, "process_weights_after_loading", None)
        if process is not None and module is not self:
            process(load_config)
