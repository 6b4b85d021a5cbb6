"""Attention backend torch_paged: always reads the pool, without a copy where slots form a run."""

from __future__ import annotations

import torch

from app.attention.forward_batch import AttentionSpan, ForwardMode
from app.attention.torch_backend import BaseTorchBackend


class TorchPagedBackend(BaseTorchBackend):
    """Continues behind any cached prefix, so prompts may come in chunks."""

    name = "torch_paged"
    supports_cached_prefix = True

    def _reads_new_rows(self, mode: ForwardMode) -> bool:
        return False

    def _pool_index(self, span: AttentionSpan, first: int, last: int) -> slice | torch.Tensor:
        if span.kv_start is not None:
            return slice(span.kv_start + first, span.kv_start + last)
        return span.kv_slots[first:last]
