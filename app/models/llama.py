"""Llama, and the frame that its relatives change in a few places."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import nn

from app.attention.forward_batch import ForwardBatch
from app.config.model_config import ModelConfig
from app.layers.activation import activation_function
from app.layers.attention import PagedAttention
from app.layers.embedding import TokenEmbedding
from app.layers.head import LMHead
from app.layers.linear import Linear, MergedLinear, QKVLinear
from app.layers.rms_norm import RMSNorm
from app.layers.rope_parameters import read_rope_parameters
from app.layers.rotary_embedding import RotaryEmbedding, Rotation
from app.models.base import BaseCausalLM


class LlamaAttention(nn.Module):
    """Self-attention of layer `layer_id` with fused query, key and value projections."""

    def __init__(
        self,
        model_config: ModelConfig,
        layer_id: int,
        linear_kernel: str,
        *,
        qkv_bias: bool,
        output_bias: bool,
        sliding_window: int | None = None,
    ) -> None:
        super().__init__()
        head_dim, dtype = model_config.head_dim, model_config.dtype
        self.num_heads = model_config.num_attention_heads
        self.num_kv_heads = model_config.num_key_value_heads
        self.head_dim = head_dim
        self.qkv_proj = QKVLinear(
            model_config.hidden_size,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=head_dim,
            bias=qkv_bias,
            dtype=dtype,
            kernel=linear_kernel,
        )
        self.o_proj = Linear(
            self.num_heads * head_dim,
            model_config.hidden_size,
            bias=output_bias,
            dtype=dtype,
            kernel=linear_kernel,
        )
        self.attn = PagedAttention(
            layer_id=layer_id,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=head_dim,
            scaling=head_dim**-0.5,
            sliding_window=sliding_window,
        )

    def forward(
        self, hidden: torch.Tensor, rotation: Rotation, batch: ForwardBatch
    ) -> torch.Tensor:
        qkv = self.qkv_proj(hidden)
        heads = qkv.view(-1, self.num_heads + 2 * self.num_kv_heads, self.head_dim)
        first_value = self.num_heads + self.num_kv_heads
        qk, v = heads[:, :first_value], heads[:, first_value:]
        q, k = qk[:, : self.num_heads], qk[:, self.num_heads :]
        self.normalize_heads_(q, k)
        # Queries and keys lie side by side: one rotation serves both.
        rotation.apply_(qk)
        output: torch.Tensor = self.o_proj(self.attn(q, k, v, batch))
        return output

    def normalize_heads_(self, q: torch.Tensor, k: torch.Tensor) -> None:
        """Change `q [T, num_heads, head_dim]` and `k` in place before they are rotated."""


class LlamaMLP(nn.Module):
    """down(act(gate(x)) * up(x)), gate and up fused."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        hidden_act: str,
        bias: bool,
        dtype: torch.dtype,
        linear_kernel: str,
    ) -> None:
        super().__init__()
        self.activation = activation_function(hidden_act)
        self.gate_up_proj = MergedLinear(
            hidden_size,
            {"gate_proj": intermediate_size, "up_proj": intermediate_size},
            bias=bias,
            dtype=dtype,
            kernel=linear_kernel,
        )
        self.down_proj = Linear(
            intermediate_size, hidden_size, bias=bias, dtype=dtype, kernel=linear_kernel
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(hidden).chunk(2, dim=-1)
        output: torch.Tensor = self.down_proj(self.activation(gate).mul_(up))
        return output


class LlamaDecoderLayer(nn.Module):
    """Attention and MLP, each behind a norm and added to the residual stream."""

    def __init__(
        self, model_config: ModelConfig, self_attn: LlamaAttention, mlp: nn.Module
    ) -> None:
        super().__init__()
        size, dtype = model_config.hidden_size, model_config.dtype
        eps = model_config.hf_config.rms_norm_eps
        self.self_attn = self_attn
        self.mlp = mlp
        self.input_layernorm = RMSNorm(size, eps=eps, dtype=dtype)
        self.post_attention_layernorm = RMSNorm(size, eps=eps, dtype=dtype)

    def forward(self, residual: torch.Tensor, rotation: Rotation, batch: ForwardBatch) -> None:
        """Adds to `residual [T, hidden_size]` in place."""
        residual += self.self_attn(self.input_layernorm(residual), rotation, batch)
        residual += self.mlp(self.post_attention_layernorm(residual))


class LlamaModel(nn.Module):
    """Embedding, layers and final norm, under the names of the checkpoint."""

    def __init__(self, model_config: ModelConfig, layers: list[LlamaDecoderLayer]) -> None:
        super().__init__()
        size, dtype = model_config.hidden_size, model_config.dtype
        self.embed_tokens = TokenEmbedding(model_config.vocab_size, size, dtype=dtype)
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(size, eps=model_config.hf_config.rms_norm_eps, dtype=dtype)
        self.rotary_emb = RotaryEmbedding(
            read_rope_parameters(model_config.hf_config),
            head_dim=model_config.head_dim,
            context_len=model_config.context_len,
            dtype=dtype,
        )

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        # New memory, so that the layers may add to it in place.
        residual: torch.Tensor = self.embed_tokens(batch.input_ids)
        rotation = self.rotary_emb(batch.positions)
        for layer in self.layers:
            layer(residual, rotation, batch)
        hidden: torch.Tensor = self.norm(residual)
        return hidden


class LlamaForCausalLM(BaseCausalLM):
    """Relatives override `make_attention` and `make_mlp`."""

    packed_modules_mapping: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType(
        {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
    )

    def __init__(self, model_config: ModelConfig, linear_kernel: str = "torch") -> None:
        super().__init__(model_config, linear_kernel)
        layers = [
            LlamaDecoderLayer(model_config, self.make_attention(index), self.make_mlp(index))
            for index in range(model_config.num_hidden_layers)
        ]
        self.model = LlamaModel(model_config, layers)
        self.lm_head = LMHead(
            model_config.hidden_size,
            model_config.vocab_size,
            bias=False,
            dtype=model_config.dtype,
            kernel=self.linear_kernel,
        )
        self.is_head_tied: bool = self.hf_config.tie_word_embeddings
        if self.is_head_tied:
            self.lm_head.tie(self.model.embed_tokens)

    @property
    def hf_config(self) -> Any:
        return self.model_config.hf_config

    def make_attention(self, layer_id: int) -> LlamaAttention:
        has_bias: bool = self.hf_config.attention_bias
        return LlamaAttention(
            self.model_config,
            layer_id,
            self.linear_kernel,
            qkv_bias=has_bias,
            output_bias=has_bias,
        )

    def make_mlp(self, layer_id: int) -> nn.Module:
        if self.model_config.quantization is not None:
            raise ValueError(
                f"quantization: {self.model_config.architecture} at "
                f"{self.model_config.model_path} cannot be {self.model_config.quantization}; "
                "use an unquantized checkpoint"
            )
        return LlamaMLP(
            self.model_config.hidden_size,
            self.hf_config.intermediate_size,
            hidden_act=self.hf_config.hidden_act,
            # Only Llama's own config has the field; its relatives' MLPs have no bias.
            bias=getattr(self.hf_config, "mlp_bias", False),
            dtype=self.model_config.dtype,
            linear_kernel=self.linear_kernel,
        )

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        hidden: torch.Tensor = self.model(batch)
        return hidden

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.lm_head(hidden)
        return logits

    def map_weight_name(self, name: str) -> str | None:
        # Old checkpoints carry rotary frequencies; tied ones may carry the head a second time.
        if name.endswith("rotary_emb.inv_freq"):
            return None
        if name == "lm_head.weight" and self.is_head_tied:
            return None
        return name
