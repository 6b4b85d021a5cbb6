"""Qwen2: Llama with biased query, key and value projections and a window in some layers."""

from __future__ import annotations

from app.models.llama import LlamaAttention, LlamaForCausalLM


class Qwen2ForCausalLM(LlamaForCausalLM):
    """Qwen2 and Qwen2.5."""

    def make_attention(self, layer_id: int) -> LlamaAttention:
        return LlamaAttention(
            self.model_config,
            layer_id,
            self.linear_kernel,
            qkv_bias=True,
            output_bias=False,
            sliding_window=self.sliding_window(layer_id),
        )

    def sliding_window(self, layer_id: int) -> int | None:
        """The layer's window; `layer_types` already accounts for use_sliding_window."""
        if self.hf_config.layer_types[layer_id] != "sliding_attention":
            return None
        window: int | None = self.hf_config.sliding_window
        return window
