"""Slots are handed out once, come back whole, and rows stay readable as runs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from app.memory.allocator import PagedAllocator
from app.memory.req_to_token_pool import ReqToTokenPool
from app.memory.token_to_kv_pool import KVGeometry, TokenToKVPool, kv_bytes_per_token


@settings(max_examples=60, deadline=None)
@given(
    page_size=st.sampled_from([1, 4, 16]),
    operations=st.lists(st.tuples(st.booleans(), st.integers(1, 5)), max_size=40),
)
def test_no_slot_is_owned_twice_and_all_come_back(
    page_size: int, operations: list[tuple[bool, int]]
) -> None:
    allocator = PagedAllocator(num_pages=12, page_size=page_size)
    owned: list[list[int]] = []
    for takes, amount in operations:
        if takes:
            slots = allocator.alloc(amount)
            if slots is None:
                assert amount * page_size > allocator.num_free_slots
            else:
                owned.append(slots)
        elif owned:
            allocator.free(owned.pop(amount % len(owned)))
        held = [slot for slots in owned for slot in slots]
        assert len(held) == len(set(held))
        assert all(slot >= page_size for slot in held), "page 0 is kept for padding"
        assert len(held) + allocator.num_free_slots == allocator.capacity
    for slots in owned:
        allocator.free(slots)
    assert allocator.num_free_slots == allocator.capacity


def test_freeing_a_page_twice_is_caught() -> None:
    allocator = PagedAllocator(num_pages=4, page_size=2)
    slots = allocator.alloc(1)
    assert slots is not None
    allocator.free(slots)
    with pytest.raises(AssertionError, match="freed twice"):
        allocator.free(slots)


def test_a_pool_without_room_says_what_to_raise() -> None:
    with pytest.raises(ValueError, match="kv_cache_memory or max_total_tokens"):
        PagedAllocator(num_pages=1, page_size=16)


def test_rows_know_whether_their_slots_are_one_run() -> None:
    pool = ReqToTokenPool(num_rows=2, num_columns=16, device=torch.device("cpu"))
    row = pool.take_row()
    pool.append(row, [5, 6])
    pool.append(row, [7])
    assert pool.run_start(row) == 5
    pool.append(row, [9])
    assert pool.run_start(row) is None
    assert pool.slots(row, 0, 4).tolist() == [5, 6, 7, 9]
    pool.free_row(row)
    again = pool.take_row()
    pool.append(again, [3, 4])
    assert pool.run_start(again) == 3
    assert pool.num_slots(again) == 2


def test_moving_overlapping_slots_reads_before_it_writes() -> None:
    geometry = (KVGeometry(1, 2), KVGeometry(2, 3))
    pool = TokenToKVPool(8, geometry, torch.float32, torch.device("cpu"))
    for layer_id, layer in enumerate(geometry):
        k = torch.arange(8.0)[:, None, None].expand(8, layer.num_kv_heads, layer.head_dim)
        pool.write(layer_id, torch.arange(8), k, -k)
    pool.move(torch.tensor([3, 5]), torch.tensor([2, 3]))
    for layer_id in range(2):
        assert pool.k[layer_id][:, 0, 0].tolist() == [0, 1, 3, 5, 4, 5, 6, 7]
        assert pool.v[layer_id][:, 0, 0].tolist() == [0, -1, -3, -5, -4, -5, -6, -7]


def test_bytes_per_token_counts_every_layer_of_the_models_own_geometry() -> None:
    layers = (KVGeometry(3, 64), KVGeometry(1, 32))
    assert kv_bytes_per_token(layers, torch.bfloat16) == 2 * 2 * (3 * 64 + 32)
    pool = TokenToKVPool(10, layers, torch.bfloat16, torch.device("cpu"))
    real = sum(t.numel() * t.element_size() for t in (*pool.k, *pool.v))
    assert pool.num_bytes == real == 10 * kv_bytes_per_token(layers, torch.bfloat16)
