"""Mistral: Llama without biases, with a sliding window in every layer."""

from __future__ import annotations

from app.models.llama import LlamaAttention, LlamaForCausalLM


class MistralForCausalLM(LlamaForCausalLM):
    """`sliding_window` of the config may be null (version 0.2 and later)."""

    def make_attention(self, layer_id: int) -> LlamaAttention:
        return LlamaAttention(
            self.model_config,
            layer_id,
            self.linear_kernel,
            qkv_bias=False,
            output_bias=False,
            sliding_window=self.hf_config.sliding_window,
        )
