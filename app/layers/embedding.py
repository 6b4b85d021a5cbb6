"""Token embeddings."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class TokenEmbedding(nn.Module):
    """`weight [vocab_size, hidden_size]`."""

    def __init__(self, vocab_size: int, hidden_size: int, *, dtype: torch.dtype) -> None:
        super().__init__()
        weight = torch.empty(vocab_size, hidden_size, dtype=dtype)
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """`[T] -> [T, hidden_size]`, a new tensor that the caller may change."""
        return functional.embedding(input_ids, self.weight)
