"""The backends compute what the reference says, for any mixture of spans."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from app.attention.base import BaseAttentionBackend
from app.attention.forward_batch import AttentionSpan, ForwardBatch, ForwardMode
from app.attention.reference import attention_reference
from app.attention.registry import create_attention_backend, reads_cached_prefix
from app.layers.attention import PagedAttention
from app.memory.token_to_kv_pool import KVGeometry, TokenToKVPool

NUM_SLOTS = 4096


@dataclass(frozen=True)
class SpanShape:
    prefix_len: int
    num_rows: int
    has_run: bool
    # None: causal; else the window's keys that no row of this forward writes.
    num_older_window_keys: int | None


def span_shapes(*, from_start: bool = False) -> st.SearchStrategy[SpanShape]:
    return st.builds(
        SpanShape,
        prefix_len=st.just(0) if from_start else st.integers(0, 20),
        num_rows=st.integers(1, 6),
        has_run=st.booleans(),
        num_older_window_keys=st.none() if from_start else st.none() | st.integers(0, 3),
    )


layers = st.builds(
    lambda group_size, num_kv_heads, sliding_window, softcap: PagedAttention(
        layer_id=0,
        num_heads=group_size * num_kv_heads,
        num_kv_heads=num_kv_heads,
        head_dim=8,
        scaling=0.4,
        sliding_window=sliding_window,
        logit_softcap=softcap,
    ),
    st.integers(1, 3),
    st.integers(1, 3),
    st.none() | st.integers(1, 9),
    st.none() | st.just(2.0),
)


def make_batch(
    shapes: list[SpanShape],
    layer: PagedAttention,
    backend: BaseAttentionBackend,
    mode: ForwardMode,
    seed: int,
    dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, ForwardBatch]:
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    geometry = KVGeometry(layer.num_kv_heads, layer.head_dim)
    pool = TokenToKVPool(NUM_SLOTS, [geometry], dtype, torch.device("cpu"))
    pool.k[0].copy_(randn(*pool.k[0].shape))
    pool.v[0].copy_(randn(*pool.v[0].shape))
    scattered = torch.randperm(NUM_SLOTS // 2, generator=generator)
    next_run, num_scattered = NUM_SLOTS // 2, 0
    spans, positions, locations, row_start = [], [], [], 0
    for shape in shapes:
        window_len = shape.num_rows + (shape.num_older_window_keys or 0)
        num_keys = shape.prefix_len + window_len
        if shape.has_run:
            slots = torch.arange(next_run, next_run + num_keys)
            next_run += num_keys
        else:
            slots = scattered[num_scattered : num_scattered + num_keys]
            num_scattered += num_keys
        mask = window_positions = None
        columns = torch.arange(shape.num_rows)
        row_positions = shape.prefix_len + columns
        if shape.num_older_window_keys is not None:
            columns = torch.randperm(window_len, generator=generator)[: shape.num_rows]
            mask = torch.rand(shape.num_rows, window_len, generator=generator) < 0.5
            mask[torch.arange(shape.num_rows), columns] = True
            depths = torch.randint(0, 4, (window_len,), generator=generator)
            window_positions = shape.prefix_len + depths
            row_positions = window_positions[columns]
        spans.append(
            AttentionSpan(
                row_start=row_start,
                num_rows=shape.num_rows,
                prefix_len=shape.prefix_len,
                kv_slots=slots,
                kv_start=int(slots[0]) if shape.has_run else None,
                mask=mask,
                window_positions=window_positions,
            )
        )
        positions.append(row_positions)
        locations.append(slots[shape.prefix_len :][columns])
        row_start += shape.num_rows
    batch = ForwardBatch(
        mode=mode,
        input_ids=torch.zeros(row_start, dtype=torch.int64),
        positions=torch.cat(positions),
        out_cache_loc=torch.cat(locations),
        spans=tuple(spans),
        token_to_kv_pool=pool,
        attn_backend=backend,
    )
    q = randn(row_start, layer.num_heads, layer.head_dim)
    k = randn(row_start, layer.num_kv_heads, layer.head_dim)
    return q, k, randn(row_start, layer.num_kv_heads, layer.head_dim), batch


@pytest.mark.parametrize("name", ["torch_paged", "torch_dense"])
@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(span_shapes(), min_size=1, max_size=3),
    layer=layers,
    mode=st.sampled_from([ForwardMode.DECODE, ForwardMode.TARGET_VERIFY, ForwardMode.DRAFT_EXTEND]),
    seed=st.integers(0, 2**31),
)
def test_rows_behind_a_prefix_match_the_reference(
    name: str, shapes: list[SpanShape], layer: PagedAttention, mode: ForwardMode, seed: int
) -> None:
    backend = create_attention_backend(name)
    q, k, v, batch = make_batch(shapes, layer, backend, mode, seed)
    expected = attention_reference(q, k, v, layer, batch)
    torch.testing.assert_close(backend.forward(q, k, v, layer, batch), expected)


@pytest.mark.parametrize("name", ["torch_paged", "torch_dense"])
@settings(max_examples=30, deadline=None)
@given(
    shapes=st.lists(span_shapes(from_start=True), min_size=1, max_size=3),
    layer=layers,
    seed=st.integers(0, 2**31),
)
def test_whole_prompts_match_the_reference(
    name: str, shapes: list[SpanShape], layer: PagedAttention, seed: int
) -> None:
    backend = create_attention_backend(name)
    q, k, v, batch = make_batch(shapes, layer, backend, ForwardMode.EXTEND, seed)
    expected = attention_reference(q, k, v, layer, batch)
    torch.testing.assert_close(backend.forward(q, k, v, layer, batch), expected)


def make_layer(**fields: object) -> PagedAttention:
    shape = {"layer_id": 0, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "scaling": 0.4}
    return PagedAttention(**{**shape, **fields})


@pytest.mark.parametrize("sliding_window", [None, 40])
@pytest.mark.parametrize(("prefix_len", "num_rows"), [(0, 300), (50, 200), (1500, 3), (1500, 1)])
def test_long_spans_match_the_reference(
    prefix_len: int, num_rows: int, sliding_window: int | None
) -> None:
    """More rows than a block has, more keys than the first mask covers."""
    layer = make_layer(sliding_window=sliding_window)
    backend = create_attention_backend("torch_paged")
    shape = SpanShape(prefix_len, num_rows, has_run=False, num_older_window_keys=None)
    q, k, v, batch = make_batch([shape], layer, backend, ForwardMode.EXTEND, seed=0)
    expected = attention_reference(q, k, v, layer, batch)
    torch.testing.assert_close(backend.forward(q, k, v, layer, batch), expected)


@pytest.mark.parametrize("older_window_keys", [None, 2])
@pytest.mark.parametrize("num_rows", [1, 8])
def test_bfloat16_stays_within_its_rounding(num_rows: int, older_window_keys: int | None) -> None:
    layer = make_layer()
    backend = create_attention_backend("torch_paged")
    shape = SpanShape(100, num_rows, True, older_window_keys)
    q, k, v, batch = make_batch(
        [shape], layer, backend, ForwardMode.TARGET_VERIFY, 0, torch.bfloat16
    )
    expected = attention_reference(q, k, v, layer, batch)
    torch.testing.assert_close(
        backend.forward(q, k, v, layer, batch), expected, atol=2e-2, rtol=2e-2
    )


def test_a_row_does_not_depend_on_the_batch_around_it() -> None:
    layer = make_layer()
    backend = create_attention_backend("torch_paged")
    shapes = [
        SpanShape(9, 3, False, None),
        SpanShape(200, 5, True, 2),
        SpanShape(31, 1, True, None),
    ]
    q, k, v, batch = make_batch(shapes, layer, backend, ForwardMode.TARGET_VERIFY, seed=1)
    together = backend.forward(q, k, v, layer, batch)
    for span in batch.spans:
        rows = slice(span.row_start, span.row_end)
        alone = replace(
            batch,
            positions=batch.positions[rows],
            out_cache_loc=batch.out_cache_loc[rows],
            spans=(replace(span, row_start=0),),
        )
        result = backend.forward(q[rows], k[rows], v[rows], layer, alone)
        assert torch.equal(result, together[rows])


def test_layers_that_mask_differently_share_a_batch() -> None:
    backend = create_attention_backend("torch_paged")
    full, windowed = make_layer(), make_layer(sliding_window=3)
    shapes = [SpanShape(12, 4, True, 1), SpanShape(5, 3, False, None)]
    q, k, v, batch = make_batch(shapes, full, backend, ForwardMode.TARGET_VERIFY, seed=2)
    for layer in (full, windowed, full):
        expected = attention_reference(q, k, v, layer, batch)
        torch.testing.assert_close(backend.forward(q, k, v, layer, batch), expected)


def test_dense_prompts_attend_to_themselves_without_reading_the_pool() -> None:
    layer = make_layer()
    backend = create_attention_backend("torch_dense")
    shape = SpanShape(0, 4, has_run=True, num_older_window_keys=None)
    q, k, v, batch = make_batch([shape], layer, backend, ForwardMode.EXTEND, seed=3)
    expected = attention_reference(q, k, v, layer, batch)
    batch.out_cache_loc = batch.out_cache_loc - 100
    torch.testing.assert_close(backend.forward(q, k, v, layer, batch), expected)
    shape = SpanShape(2, 4, has_run=True, num_older_window_keys=None)
    q, k, v, batch = make_batch([shape], layer, backend, ForwardMode.EXTEND, seed=3)
    with pytest.raises(AssertionError, match="cached prefix"):
        backend.forward(q, k, v, layer, batch)


def test_a_narrower_cache_rounds_prompts_the_same_way_in_both_backends() -> None:
    layer = make_layer()
    results = []
    for name in ("torch_paged", "torch_dense"):
        backend = create_attention_backend(name)
        shape = SpanShape(0, 6, has_run=True, num_older_window_keys=None)
        q, k, v, batch = make_batch([shape], layer, backend, ForwardMode.EXTEND, seed=4)
        geometry = batch.token_to_kv_pool.layers
        batch.token_to_kv_pool = TokenToKVPool(NUM_SLOTS, geometry, torch.bfloat16, q.device)
        results.append(backend.forward(q, k, v, layer, batch))
    assert results[0].dtype == torch.float32
    assert torch.equal(results[0], results[1])


def test_names() -> None:
    assert reads_cached_prefix("torch_paged")
    assert not reads_cached_prefix("torch_dense")
    with pytest.raises(ValueError, match="torch_dense, torch_paged"):
        create_attention_backend("flash")
