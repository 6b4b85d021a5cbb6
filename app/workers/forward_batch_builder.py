"""Lays requests out as the rows of one forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from app.attention.forward_batch import AttentionSpan, ForwardBatch, ForwardMode
from app.memory.pools import MemoryPools
from app.workers.tp_worker import BaseTpWorker


@dataclass(frozen=True, slots=True)
class CausalRows:
    """`token_ids` of one request at positions `start ..`, each seeing all before it."""

    row: int
    start: int
    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class MaskedRows:
    """Rows of a tree behind `prefix_len` committed tokens.

    `token_ids`, `depths` (distance from the root) and `window_columns` (where in the window each
    row's key goes) have a value a row; `mask [num_rows, window_len]` says which window keys each
    row sees and `window_depths [window_len]` where those lie.
    """

    row: int
    prefix_len: int
    token_ids: torch.Tensor
    depths: torch.Tensor
    window_columns: torch.Tensor
    mask: torch.Tensor
    window_depths: torch.Tensor


def causal_batch(
    mode: ForwardMode, pieces: Sequence[CausalRows], worker: BaseTpWorker, pools: MemoryPools
) -> ForwardBatch:
    """Prompt chunks, single decode tokens, chains: everything without branches."""
    table = pools.req_to_token_pool
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[torch.Tensor] = []
    spans: list[AttentionSpan] = []
    last_position = worker.last_position
    for piece in pieces:
        end = piece.start + len(piece.token_ids)
        spans.append(
            AttentionSpan(
                row_start=len(token_ids),
                num_rows=len(piece.token_ids),
                prefix_len=piece.start,
                kv_slots=table.slots(piece.row, 0, end),
                kv_start=table.run_start(piece.row),
            )
        )
        token_ids.extend(piece.token_ids)
        positions.extend(range(piece.start, end))
        slots.append(table.slots(piece.row, piece.start, end))
    if positions and max(positions) > last_position:
        positions = [min(position, last_position) for position in positions]
    return ForwardBatch(
        mode=mode,
        input_ids=torch.tensor(token_ids, dtype=torch.int64, device=worker.device),
        positions=torch.tensor(positions, dtype=torch.int64, device=worker.device),
        out_cache_loc=slots[0] if len(slots) == 1 else torch.cat(slots),
        spans=tuple(spans),
        token_to_kv_pool=worker.token_to_kv_pool,
        attn_backend=worker.attention_backend,
    )


def masked_batch(
    mode: ForwardMode, pieces: Sequence[MaskedRows], worker: BaseTpWorker, pools: MemoryPools
) -> ForwardBatch:
    """Trees: each row sees the prefix and its own ancestors in the window."""
    table = pools.req_to_token_pool
    spans: list[AttentionSpan] = []
    slots: list[torch.Tensor] = []
    row_start = 0
    for piece in pieces:
        num_rows, window_len = piece.mask.shape
        kv_slots = table.slots(piece.row, 0, piece.prefix_len + window_len)
        spans.append(
            AttentionSpan(
                row_start=row_start,
                num_rows=num_rows,
                prefix_len=piece.prefix_len,
                kv_slots=kv_slots,
                kv_start=table.run_start(piece.row),
                mask=piece.mask,
                window_positions=piece.prefix_len + piece.window_depths,
            )
        )
        slots.append(kv_slots[piece.prefix_len :][piece.window_columns])
        row_start += num_rows
    positions = torch.cat([piece.prefix_len + piece.depths for piece in pieces])
    return ForwardBatch(
        mode=mode,
        input_ids=torch.cat([piece.token_ids for piece in pieces]),
        # Rows past the context can only predict tokens that are never emitted; a learned position
        # table has no row for them.
        positions=positions.clamp_(max=worker.last_position),
        out_cache_loc=torch.cat(slots),
        spans=tuple(spans),
        token_to_kv_pool=worker.token_to_kv_pool,
        attn_backend=worker.attention_backend,
    )
