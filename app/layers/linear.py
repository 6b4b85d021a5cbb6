"""Linear layers; several of a checkpoint may be fused into one, row block by row block."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import nn
from torch.nn import functional

from app.config.load_config import LoadConfig
from app.kernels.prepacked_linear import ONEDNN_BF16, can_prepack, prepack_weight, prepacked_linear


class Linear(nn.Module):
    """`weight [out_features, in_features]` in `dtype`; `kernel` is "torch" or "onednn_bf16".

    With onednn_bf16 the plain weight is replaced by a packed one when loading is done.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool,
        dtype: torch.dtype,
        kernel: str,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.kernel = kernel
        self._packed_weight: torch.Tensor | None = None
        weight = torch.empty(out_features, in_features, dtype=dtype)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None
        if bias:
            self.bias = nn.Parameter(torch.empty(out_features, dtype=dtype), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[rows, in_features] -> [rows, out_features]`."""
        if self._packed_weight is not None:
            return prepacked_linear(x, self._packed_weight, self.bias)
        assert self.weight is not None
        return functional.linear(x, self.weight, self.bias)

    def process_weights_after_loading(self, load_config: LoadConfig) -> None:
        """Pack the weight if the kernel wants that; tensors that share it keep theirs."""
        weight = self.weight
        if weight is None or self.kernel != ONEDNN_BF16:
            return
        if can_prepack(weight.dtype, weight.device):
            self._packed_weight = prepack_weight(weight.detach())
            self.weight = None


class MergedLinear(Linear):
    """Linear layers over the same input, one behind the other in one weight.

    `shards`: checkpoint sub-name -> its number of output features, in order.
    """

    shard_slices: Mapping[str, slice]

    def __init__(
        self,
        in_features: int,
        shards: Mapping[str, int],
        *,
        bias: bool,
        dtype: torch.dtype,
        kernel: str,
    ) -> None:
        super().__init__(in_features, sum(shards.values()), bias=bias, dtype=dtype, kernel=kernel)
        slices: dict[str, slice] = {}
        start = 0
        for name, size in shards.items():
            slices[name] = slice(start, start + size)
            start += size
        self.shard_slices = MappingProxyType(slices)


class QKVLinear(MergedLinear):
    """Query, key and value projections: `[rows, (num_heads + 2 num_kv_heads) * head_dim]`."""

    def __init__(
        self,
        in_features: int,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        bias: bool,
        dtype: torch.dtype,
        kernel: str,
    ) -> None:
        shards = {
            "q_proj": num_heads * head_dim,
            "k_proj": num_kv_heads * head_dim,
            "v_proj": num_kv_heads * head_dim,
        }
        super().__init__(in_features, shards, bias=bias, dtype=dtype, kernel=kernel)
