"""The interface of an attention backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from app.attention.forward_batch import ForwardBatch
    from app.layers.attention import PagedAttention


class BaseAttentionBackend(ABC):
    """Writes new keys and values to their slots and attends over what each row sees."""

    name: str
    # False: prefill cannot continue behind cached tokens, so prompts run in one piece.
    supports_cached_prefix: bool

    @abstractmethod
    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: PagedAttention,
        batch: ForwardBatch,
    ) -> torch.Tensor:
        """`q [T, num_heads, head_dim]`, `k, v [T, num_kv_heads, head_dim]` (rope applied)
        -> `[T, num_heads * head_dim]`."""
        ...
