"""The draft's KV pool: its own geometry and dtype, in the target's slot space and budget."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from app.memory.token_to_kv_pool import kv_bytes_per_token
from app.testing.checkpoints import write_checkpoint
from tests.integration.pairs import Pair, decode, draft_tp_worker, write_pair

BUDGET = 256 * 1024


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The draft is wider and deeper than its target."""
    root = tmp_path_factory.mktemp("wide")
    pair = write_pair(root)
    draft = write_checkpoint(
        root / "wide", num_layers=3, hidden_size=64, num_heads=4, num_kv_heads=4, seed=5
    )
    return Pair(pair.target, draft)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("kv_cache_dtype", [None, "bfloat16"])
def test_the_budget_holds_the_pools_of_both(
    pair: Pair, page_size: int, kv_cache_dtype: str | None
) -> None:
    container: Any = pair.build(
        max_total_tokens=None,
        kv_cache_memory=BUDGET,
        page_size=page_size,
        speculative_draft_kv_cache_dtype=kv_cache_dtype,
    )
    scheduler = container.scheduler()
    target, draft = container.target.tp_worker(), draft_tp_worker(scheduler)
    assert draft.kv_geometry[0].num_kv_heads == 4
    assert len(draft.token_to_kv_pool.k) == 3
    assert draft.token_to_kv_pool.dtype is (torch.bfloat16 if kv_cache_dtype else torch.float32)
    per_token = {
        worker: kv_bytes_per_token(worker.kv_geometry, worker.kv_cache_dtype)
        for worker in (target, draft)
    }
    assert scheduler.spec_worker.draft_bytes_per_token == per_token[draft]
    capacity = scheduler.pools.allocator.capacity
    assert capacity == BUDGET // sum(per_token.values()) // page_size * page_size
    pools = [target.token_to_kv_pool, draft.token_to_kv_pool]
    assert {pool.num_slots for pool in pools} == {capacity + page_size}
    # The padding page comes on top.
    assert sum(pool.num_bytes for pool in pools) <= BUDGET + page_size * sum(per_token.values())
    assert decode(container) == pair.decode_alone()


def test_an_algorithm_without_a_draft_model_takes_no_share(pair: Pair) -> None:
    fields: dict[str, Any] = {"max_total_tokens": None, "kv_cache_memory": BUDGET}
    ngram = pair.build(speculative_algorithm="NGRAM", **fields)
    target = ngram.target.tp_worker()
    per_token = kv_bytes_per_token(target.kv_geometry, target.kv_cache_dtype)
    assert ngram.scheduler().pools.allocator.capacity == BUDGET // per_token
