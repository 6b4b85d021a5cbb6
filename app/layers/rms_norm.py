"""Root-mean-square normalisation, with the roundings of transformers' LlamaRMSNorm."""

from __future__ import annotations

import torch
from torch import nn


class RMSNorm(nn.Module):
    """Normalises the last dimension: statistics in float32, weight applied in the input's dtype.

    torch's own rms_norm applies the weight in float32, which differs by a bfloat16 step, and is
    slower for the few rows of a decode step.
    """

    def __init__(self, size: int, *, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = eps
        # A tensor, because a number would be made into one at each call: this runs twice a layer.
        self._size = torch.tensor(float(size), device="cpu")
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        mean_square = wide.square().sum(-1, keepdim=True).div_(self._size)
        scale = mean_square.add_(self.eps).rsqrt_()
        # The product is a new tensor, so the weight can be applied in place.
        return (wide * scale).to(x.dtype).mul_(self.weight)
