"""Root-mean-square normalisation, with the roundings of transformers' LlamaRMSNorm."""

from __future__ import annotations

import torch
from torch import nn


class RMSNorm(nn.Module):
    """Normalises the last dimension: statistics in float32, weight applied in the input's dtype.

    torch's own rms_norm applies the weight in float32, which differs by a bfloat16 step, and is no
    faster on a CPU.
    """

    def __init__(self, size: int, *, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scale = wide.pow(2).mean(-1, keepdim=True).add_(self.eps).rsqrt_()
        # The product is a new tensor, so the weight can be applied in place.
        return (wide * scale).to(x.dtype).mul_(self.weight)
