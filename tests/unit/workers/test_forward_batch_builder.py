"""How requests become rows: tokens, positions, slots and who sees whom."""

from __future__ import annotations

import pytest
import torch

from app.attention.forward_batch import ForwardMode
from app.memory.allocator import PagedAllocator
from app.memory.pools import MemoryPools
from app.memory.req_to_token_pool import ReqToTokenPool
from app.testing.fakes import FakeTpWorker
from app.workers.forward_batch_builder import CausalRows, MaskedRows, causal_batch, masked_batch

CONTEXT_LENGTH = 12


@pytest.fixture
def worker() -> FakeTpWorker:
    worker = FakeTpWorker(vocab_size=32, context_len=CONTEXT_LENGTH)
    worker.alloc_kv_pool(40)
    return worker


@pytest.fixture
def pools() -> MemoryPools:
    """Row 0 holds slots 1..6 and then 9..14; row 1 holds 20..31, one run."""
    table = ReqToTokenPool(2, 20, torch.device("cpu"))
    # Rows are handed out in ascending order.
    assert [table.take_row(), table.take_row()] == [0, 1]
    table.append(0, [1, 2, 3, 4, 5, 6])
    table.append(0, [9, 10, 11, 12, 13, 14])
    table.append(1, list(range(20, 32)))
    return MemoryPools(table, PagedAllocator(40, 1))


def test_causal_rows_of_two_requests(worker: FakeTpWorker, pools: MemoryPools) -> None:
    pieces = [CausalRows(0, 4, [50, 51, 52, 53]), CausalRows(1, 0, [60, 61])]
    batch = causal_batch(ForwardMode.EXTEND, pieces, worker, pools)
    assert batch.input_ids.tolist() == [50, 51, 52, 53, 60, 61]
    assert batch.positions.tolist() == [4, 5, 6, 7, 0, 1]
    assert batch.out_cache_loc.tolist() == [5, 6, 9, 10, 20, 21]
    first, second = batch.spans
    assert (first.row_start, first.num_rows, first.prefix_len) == (0, 4, 4)
    assert first.kv_slots.tolist() == [1, 2, 3, 4, 5, 6, 9, 10]
    assert first.kv_start is None
    assert (second.row_start, second.num_rows, second.prefix_len) == (4, 2, 0)
    assert second.kv_slots.tolist() == [20, 21]
    assert second.kv_start == 20
    assert first.mask is second.mask is None
    assert batch.token_to_kv_pool is worker.token_to_kv_pool
    assert batch.mode is ForwardMode.EXTEND


def test_one_request_alone(worker: FakeTpWorker, pools: MemoryPools) -> None:
    batch = causal_batch(ForwardMode.DECODE, [CausalRows(1, 3, [7])], worker, pools)
    assert batch.out_cache_loc.tolist() == [23]
    assert batch.positions.tolist() == [3]
    assert batch.spans[0].num_keys == 4


def test_rows_past_the_context_keep_its_last_position(
    worker: FakeTpWorker, pools: MemoryPools
) -> None:
    """They predict tokens that are never emitted; a table of positions has no row for them."""
    batch = causal_batch(
        ForwardMode.TARGET_VERIFY, [CausalRows(1, 10, [1, 2, 3, 4])], worker, pools
    )
    assert batch.positions.tolist() == [10, 11, 11, 11]
    depths = torch.tensor([0, 1, 2, 2])
    rows = MaskedRows(1, 10, torch.tensor([1, 2, 3, 4]), depths, torch.arange(4),
                      torch.eye(4, dtype=torch.bool), depths)  # fmt: skip
    batch = masked_batch(ForwardMode.TARGET_VERIFY, [rows], worker, pools)
    assert batch.positions.tolist() == [10, 11, 11, 11]


def test_masked_rows_of_two_trees(worker: FakeTpWorker, pools: MemoryPools) -> None:
    mask = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.bool)
    depths = torch.tensor([0, 1, 1])
    trees = [
        MaskedRows(0, 5, torch.tensor([8, 9, 10]), depths, torch.arange(3), mask, depths),
        MaskedRows(1, 2, torch.tensor([11, 12, 13]), depths, torch.arange(3), mask, depths),
    ]
    batch = masked_batch(ForwardMode.TARGET_VERIFY, trees, worker, pools)
    assert batch.input_ids.tolist() == [8, 9, 10, 11, 12, 13]
    assert batch.positions.tolist() == [5, 6, 6, 2, 3, 3]
    assert batch.out_cache_loc.tolist() == [6, 9, 10, 22, 23, 24]
    first, second = batch.spans
    assert first.kv_slots.tolist() == [1, 2, 3, 4, 5, 6, 9, 10]
    assert (first.prefix_len, second.prefix_len) == (5, 2)
    assert (first.row_start, second.row_start) == (0, 3)
    assert first.window_positions is not None
    assert first.window_positions.tolist() == [5, 6, 6]
    assert second.kv_start == 20
    assert torch.equal(first.mask, mask)  # type: ignore[arg-type]


def test_beams_write_behind_the_columns_that_they_see(
    worker: FakeTpWorker, pools: MemoryPools
) -> None:
    """Two beams of the second draft forward: column 0 is the bonus, 1 and 2 the first beams."""
    mask = torch.tensor([[1, 1, 0, 1, 0], [1, 1, 0, 0, 1]], dtype=torch.bool)
    beams = MaskedRows(
        row=1,
        prefix_len=4,
        token_ids=torch.tensor([1, 2]),
        depths=torch.tensor([2, 2]),
        window_columns=torch.tensor([3, 4]),
        mask=mask,
        window_depths=torch.tensor([0, 1, 1, 2, 2]),
    )
    batch = masked_batch(ForwardMode.DECODE, [beams], worker, pools)
    (span,) = batch.spans
    assert batch.out_cache_loc.tolist() == [27, 28]
    assert batch.positions.tolist() == [6, 6]
    assert span.kv_slots.tolist() == list(range(20, 29))
    assert span.window_positions is not None
    assert span.window_positions.tolist() == [4, 5, 5, 6, 6]
