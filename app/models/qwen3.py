"""Qwen3: Qwen2 without the bias by default, with a norm on each query and key head."""

from __future__ import annotations

import torch

from app.config.model_config import ModelConfig
from app.layers.rms_norm import RMSNorm
from app.models.llama import LlamaAttention
from app.models.qwen2 import Qwen2ForCausalLM


class Qwen3Attention(LlamaAttention):
    """Heads are normalised before they are rotated."""

    def __init__(
        self,
        model_config: ModelConfig,
        layer_id: int,
        linear_kernel: str,
        *,
        has_bias: bool,
        sliding_window: int | None,
    ) -> None:
        super().__init__(
            model_config,
            layer_id,
            linear_kernel,
            qkv_bias=has_bias,
            output_bias=has_bias,
            sliding_window=sliding_window,
        )
        eps, dtype = model_config.hf_config.rms_norm_eps, model_config.dtype
        self.q_norm = RMSNorm(self.head_dim, eps=eps, dtype=dtype)
        self.k_norm = RMSNorm(self.head_dim, eps=eps, dtype=dtype)

    def normalize_heads_(self, q: torch.Tensor, k: torch.Tensor) -> None:
        q.copy_(self.q_norm(q))
        k.copy_(self.k_norm(k))


class Qwen3ForCausalLM(Qwen2ForCausalLM):
    """Dense Qwen3."""

    def make_attention(self, layer_id: int) -> LlamaAttention:
        return Qwen3Attention(
            self.model_config,
            layer_id,
            self.linear_kernel,
            has_bias=self.hf_config.attention_bias,
            sliding_window=self.sliding_window(layer_id),
        )
