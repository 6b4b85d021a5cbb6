"""Cuts the spans of a batch into blocks: rows, the keys that they see, and the mask between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from app.attention.causal_bias import MAX_BLOCK_ROWS, CausalBias, additive_bias
from app.attention.forward_batch import AttentionSpan, ForwardBatch
from app.layers.attention import PagedAttention

# Where the keys `first .. last-1` of a span lie: rows of the tensor that attention reads.
KeyIndex = Callable[[AttentionSpan, int, int], slice | torch.Tensor]


@dataclass(frozen=True, slots=True)
class AttentionBlock:
    """Rows `row_start .. row_end-1` of the batch over the keys at `key_index`.

    `bias [1, 1, rows * group_size, keys]` is added to the logits; None: every row sees every key.
    """

    row_start: int
    row_end: int
    key_index: slice | torch.Tensor
    bias: torch.Tensor | None


class BlockPlanner:
    """Plans a batch once for all layers that mask alike.

    The plan belongs to the batch's spans and positions, which must not change in between.
    """

    def __init__(self) -> None:
        self._causal_biases: dict[tuple[object, ...], CausalBias] = {}
        self._plans: dict[tuple[object, ...], tuple[AttentionBlock, ...]] = {}
        self._spans: tuple[AttentionSpan, ...] | None = None
        self._positions: torch.Tensor | None = None

    def blocks(
        self, batch: ForwardBatch, layer: PagedAttention, q: torch.Tensor, key_index: KeyIndex
    ) -> tuple[AttentionBlock, ...]:
        """The blocks of `batch`, span by span; `q` tells dtype and device."""
        if batch.spans is not self._spans or batch.positions is not self._positions:
            self._spans, self._positions = batch.spans, batch.positions
            self._plans.clear()
        group_size = layer.num_heads // layer.num_kv_heads
        kind = (group_size, layer.sliding_window, q.dtype, q.device)
        plan = self._plans.get(kind)
        if plan is None:
            causal = self._causal_biases.get(kind)
            if causal is None:
                causal = CausalBias(group_size, layer.sliding_window, q.dtype, q.device)
                self._causal_biases[kind] = causal
            plan = tuple(
                block
                for span in batch.spans
                for block in (
                    _causal_blocks(span, layer.sliding_window, causal, key_index)
                    if span.mask is None
                    else _masked_blocks(span, batch.positions, layer, q.dtype, key_index)
                )
            )
            self._plans[kind] = plan
        return plan


def _causal_blocks(
    span: AttentionSpan, sliding_window: int | None, causal: CausalBias, key_index: KeyIndex
) -> Iterator[AttentionBlock]:
    assert span.num_keys == span.prefix_len + span.num_rows, "a causal window is the span's rows"
    for start in range(0, span.num_rows, MAX_BLOCK_ROWS):
        end = min(start + MAX_BLOCK_ROWS, span.num_rows)
        first = _first_key(span.prefix_len + start, sliding_window)
        last = span.prefix_len + end
        is_one_row = end - start == 1
        yield AttentionBlock(
            row_start=span.row_start + start,
            row_end=span.row_start + end,
            key_index=key_index(span, first, last),
            bias=None if is_one_row else causal.view(end - start, last - first),
        )


def _masked_blocks(
    span: AttentionSpan,
    positions: torch.Tensor,
    layer: PagedAttention,
    dtype: torch.dtype,
    key_index: KeyIndex,
) -> Iterator[AttentionBlock]:
    assert span.mask is not None
    sliding_window = layer.sliding_window
    for start in range(0, span.num_rows, MAX_BLOCK_ROWS):
        end = min(start + MAX_BLOCK_ROWS, span.num_rows)
        mask = span.mask[start:end]
        rows = slice(span.row_start + start, span.row_start + end)
        first = 0
        if sliding_window is not None:
            first = min(_first_key(int(positions[rows].min()), sliding_window), span.prefix_len)
        is_seen = torch.cat((mask.new_ones(end - start, span.prefix_len - first), mask), dim=1)
        if sliding_window is not None:
            key_positions = _key_positions(span, first)
            is_seen &= key_positions > positions[rows, None] - sliding_window
        bias = additive_bias(is_seen, dtype)
        yield AttentionBlock(
            row_start=rows.start,
            row_end=rows.stop,
            key_index=key_index(span, first, span.num_keys),
            bias=bias.repeat_interleave(layer.num_heads // layer.num_kv_heads, dim=0)[None, None],
        )


def _first_key(position: int, sliding_window: int | None) -> int:
    """The earliest position that a query at `position` sees."""
    return 0 if sliding_window is None else max(0, position - sliding_window + 1)


def _key_positions(span: AttentionSpan, first: int) -> torch.Tensor:
    device = span.kv_slots.device
    if span.window_positions is None:
        return torch.arange(first, span.num_keys, device=device)
    prefix = torch.arange(first, span.prefix_len, device=device)
    return torch.cat((prefix, span.window_positions))
