"""The attention layer of a model: geometry only; the backend of the batch does the work."""

from __future__ import annotations

import torch
from torch import nn

from app.attention.forward_batch import ForwardBatch


class PagedAttention(nn.Module):
    """One layer's attention over the KV pool.

    `sliding_window` counts positions: a query at p sees keys at positions > p - sliding_window.
    """

    def __init__(
        self,
        *,
        layer_id: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scaling: float,
        sliding_window: int | None = None,
        logit_softcap: float | None = None,
    ) -> None:
        super().__init__()
        self.layer_id = layer_id
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.scaling = scaling
        self.sliding_window = sliding_window
        self.logit_softcap = logit_softcap

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: ForwardBatch
    ) -> torch.Tensor:
        """`q [T, num_heads * head_dim]` or with heads split -> `[T, num_heads * head_dim]`."""
        return batch.attn_backend.forward(
            q.view(-1, self.num_heads, self.head_dim),
            k.view(-1, self.num_kv_heads, self.head_dim),
            v.view(-1, self.num_kv_heads, self.head_dim),
            self,
            batch,
        )
