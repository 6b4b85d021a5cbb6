"""What attention over the pool means, row by row; the backends are tested against it."""

from __future__ import annotations

import torch

from app.attention.forward_batch import AttentionSpan, ForwardBatch
from app.layers.attention import PagedAttention


def attention_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layer: PagedAttention,
    batch: ForwardBatch,
) -> torch.Tensor:
    """The signature and result of `BaseAttentionBackend.forward`, computed in float64."""
    pool = batch.token_to_kv_pool
    pool.write(layer.layer_id, batch.out_cache_loc, k, v)
    output = torch.zeros(q.shape[0], layer.num_heads, layer.head_dim, dtype=torch.float64)
    group_size = layer.num_heads // layer.num_kv_heads
    for span in batch.spans:
        # One slot at a time is slow, but says what is meant.
        keys = torch.stack([pool.k[layer.layer_id][slot] for slot in span.kv_slots.tolist()])
        values = torch.stack([pool.v[layer.layer_id][slot] for slot in span.kv_slots.tolist()])
        for row in range(span.num_rows):
            position = int(batch.positions[span.row_start + row])
            seen = _seen_keys(span, row, position, layer.sliding_window)
            for head in range(layer.num_heads):
                query = q[span.row_start + row, head].double()
                logits = keys[seen, head // group_size].double() @ query * layer.scaling
                if layer.logit_softcap is not None:
                    logits = layer.logit_softcap * torch.tanh(logits / layer.logit_softcap)
                weights = torch.softmax(logits, dim=0)
                attended = weights @ values[seen, head // group_size].double()
                output[span.row_start + row, head] = attended
    return output.flatten(1).to(q.dtype)


def _seen_keys(
    span: AttentionSpan, row: int, position: int, sliding_window: int | None
) -> list[int]:
    seen = []
    for key in range(span.num_keys):
        window_index = key - span.prefix_len
        key_position = key
        if window_index < 0:
            is_seen = True
        elif span.mask is None:
            is_seen = window_index <= row
        else:
            is_seen = bool(span.mask[row, window_index])
            if span.window_positions is not None:
                key_position = int(span.window_positions[window_index])
        if sliding_window is not None:
            is_seen = is_seen and key_position > position - sliding_window
        if is_seen:
            seen.append(key)
    return seen
