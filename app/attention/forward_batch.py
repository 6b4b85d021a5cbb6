"""What one forward pass needs besides the weights: tokens, positions, slots, and who sees whom."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from app.attention.base import BaseAttentionBackend
    from app.memory.token_to_kv_pool import TokenToKVPool


class ForwardMode(Enum):
    """EXTEND: prompt tokens. DECODE: one generated token (or K draft beams) a request.
    TARGET_VERIFY: the nodes of a draft tree. DRAFT_EXTEND: the draft catching up on what was
    accepted."""

    EXTEND = "extend"
    DECODE = "decode"
    TARGET_VERIFY = "target_verify"
    DRAFT_EXTEND = "draft_extend"


@dataclass(frozen=True, slots=True)
class AttentionSpan:
    """The rows of one request in a batch and the keys they see.

    Keys are `kv_slots [prefix_len + window_len]`: first the prefix, visible to every row, at
    positions `0 .. prefix_len-1` in order; then the window. Without a mask the window is causal: it
    holds the span's own rows (`window_len == num_rows`) and row i sees window keys `0 .. i`.
    With `mask [num_rows, window_len]` (bool) row i sees exactly the window keys that are true,
    and `window_positions [window_len]` gives their positions (for sliding windows).
    The keys and values of the span's own rows are written before attention reads the pool.
    """

    row_start: int
    num_rows: int
    prefix_len: int
    kv_slots: torch.Tensor
    # First slot when kv_slots is one ascending run, so that the pool can be read without a gather.
    kv_start: int | None = None
    mask: torch.Tensor | None = None
    window_positions: torch.Tensor | None = None

    @property
    def row_end(self) -> int:
        return self.row_start + self.num_rows

    @property
    def num_keys(self) -> int:
        return self.kv_slots.shape[0]


@dataclass(slots=True)
class ForwardBatch:
    """One forward of one model: `input_ids`, `positions`, `out_cache_loc` are `[num_tokens]` int64;
    `out_cache_loc` is the slot that each row's key and value are written to."""

    mode: ForwardMode
    input_ids: torch.Tensor
    positions: torch.Tensor
    out_cache_loc: torch.Tensor
    spans: tuple[AttentionSpan, ...]
    token_to_kv_pool: TokenToKVPool
    attn_backend: BaseAttentionBackend
