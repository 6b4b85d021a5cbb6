"""What the torch backends share: write the new rows, then attend block by block."""

from __future__ import annotations

from abc import abstractmethod

import torch

from app.attention.base import BaseAttentionBackend
from app.attention.block_plan import BlockPlanner, KeyIndex
from app.attention.forward_batch import AttentionSpan, ForwardBatch, ForwardMode
from app.attention.grouped_attention import grouped_attention
from app.layers.attention import PagedAttention


class BaseTorchBackend(BaseAttentionBackend):
    """Every span attends on its own: a row's result does not depend on the batch around it."""

    def __init__(self) -> None:
        self._planner = BlockPlanner()

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: PagedAttention,
        batch: ForwardBatch,
    ) -> torch.Tensor:
        key_index: KeyIndex = self._pool_index
        pool, layer_id = batch.token_to_kv_pool, layer.layer_id
        pool.write(layer_id, batch.out_cache_loc, k, v)
        keys, values = pool.k[layer_id], pool.v[layer_id]
        if self._reads_new_rows(batch.mode):
            # Rounded as the pool rounds, so that a prompt's result does not depend on its cutting.
            keys, values = k.to(pool.dtype), v.to(pool.dtype)
            key_index = new_rows_index
        outputs = [
            grouped_attention(
                q[block.row_start : block.row_end],
                keys[block.key_index].to(q.dtype),
                values[block.key_index].to(q.dtype),
                block.bias,
                scaling=layer.scaling,
                logit_softcap=layer.logit_softcap,
            )
            for block in self._planner.blocks(batch, layer, q, key_index)
        ]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    @abstractmethod
    def _reads_new_rows(self, mode: ForwardMode) -> bool:
        """Whether attention reads the forward's own keys and values instead of the pool."""
        ...

    @abstractmethod
    def _pool_index(self, span: AttentionSpan, first: int, last: int) -> slice | torch.Tensor:
        """The pool rows of the span's keys `first .. last-1`."""
        ...


def new_rows_index(span: AttentionSpan, first: int, last: int) -> slice:
    """The same keys among the rows of the forward, for a prompt that starts with it."""
    assert span.prefix_len == 0, "this backend reads no cached prefix"
    assert span.mask is None, "a prompt has no branches"
    return slice(span.row_start + first, span.row_start + last)
