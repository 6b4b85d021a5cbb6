"""Attention backend torch_dense: prompts attend to themselves alone, later rows gather the pool."""

from __future__ import annotations

import torch

from app.attention.forward_batch import AttentionSpan, ForwardMode
from app.attention.torch_backend import BaseTorchBackend


class TorchDenseBackend(BaseTorchBackend):
    """A prompt must come in one piece: its forward never reads the pool."""

    name = "torch_dense"
    supports_cached_prefix = False

    def _reads_new_rows(self, mode: ForwardMode) -> bool:
        return mode is ForwardMode.EXTEND

    def _pool_index(self, span: AttentionSpan, first: int, last: int) -> torch.Tensor:
        return span.kv_slots[first:last]
