"""A Llama whose MLPs are shared experts in ModelOpt NVFP4."""

from __future__ import annotations

import torch
from torch import nn

from app.config.model_config import ModelConfig
from app.config.quantization import MODELOPT_FP4
from app.layers.activation import activation_function
from app.layers.quantization.modelopt_fp4 import ModelOptFp4Experts
from app.models.llama import LlamaForCausalLM


class SharedExpertsMLP(nn.Module):
    """Experts that all see every token; their outputs are summed.

    `w13` holds each expert's gate rows and up rows, one behind the other; `w2` its down projection.
    """

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        intermediate_size: int,
        *,
        hidden_act: str,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.activation = activation_function(hidden_act)
        self.w13 = ModelOptFp4Experts(num_experts, hidden_size, 2 * intermediate_size, dtype=dtype)
        self.w2 = ModelOptFp4Experts(num_experts, intermediate_size, hidden_size, dtype=dtype)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[T, hidden_size] -> [T, hidden_size]`."""
        gate, up = self.w13.each(hidden).chunk(2, dim=-1)
        return self.w2.summed(self.activation(gate).mul_(up))


class SharedExpertsForCausalLM(LlamaForCausalLM):
    """`hf_config` is Llama's with `n_shared_experts`; `intermediate_size` is that of one expert."""

    def __init__(self, model_config: ModelConfig, linear_kernel: str = "torch") -> None:
        if model_config.quantization != MODELOPT_FP4:
            raise ValueError(
                f"quantization: {model_config.architecture} at {model_config.model_path} needs "
                f"{MODELOPT_FP4}, got {model_config.quantization}"
            )
        super().__init__(model_config, linear_kernel)

    def make_mlp(self, layer_id: int) -> nn.Module:
        num_experts = getattr(self.hf_config, "n_shared_experts", None)
        if not isinstance(num_experts, int) or num_experts < 1:
            raise ValueError(
                f"{self.model_config.model_path}: config.json must give n_shared_experts, a whole "
                f"number from 1, got {num_experts!r}"
            )
        return SharedExpertsMLP(
            num_experts,
            self.model_config.hidden_size,
            self.hf_config.intermediate_size,
            hidden_act=self.hf_config.hidden_act,
            dtype=self.model_config.dtype,
        )
