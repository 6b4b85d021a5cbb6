"""What drafting leaves in the caches is what a fresh prefill of the text would put there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from app.engine import Engine
from app.memory.token_to_kv_pool import TokenToKVPool
from app.scheduling.request import Request
from app.workers.standalone_worker import StandaloneWorker
from tests.integration.engines import (
    TinyModels,
    greedy,
    ngram,
    open_tiny,
    random_prompt,
    standalone,
)

TOLERANCE = 1e-4


@torch.inference_mode()
def fresh_cache(checkpoint: Path, token_ids: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values `[num_tokens, num_kv_heads, head_dim]` of each layer, by transformers."""
    load: Any = AutoModelForCausalLM.from_pretrained
    model = load(checkpoint, dtype=torch.float32)
    cache = model(torch.tensor([token_ids]), use_cache=True).past_key_values
    return [
        (layer.keys[0].transpose(0, 1), layer.values[0].transpose(0, 1)) for layer in cache.layers
    ]


def assert_exact(
    engine: Engine, pool: TokenToKVPool, request: Request, num_tokens: int, checkpoint: Path
) -> None:
    """The first `num_tokens` rows of a request in `pool` are those of a fresh prefill."""
    slots = engine.scheduler.pools.req_to_token_pool.slots(request.row, 0, num_tokens)
    fresh = fresh_cache(checkpoint, request.token_ids[:num_tokens])
    assert len(fresh) == len(pool.k)
    for layer_id, (keys, values) in enumerate(fresh):
        torch.testing.assert_close(pool.k[layer_id][slots], keys, atol=TOLERANCE, rtol=TOLERANCE)
        torch.testing.assert_close(pool.v[layer_id][slots], values, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize(
    ("draft", "num_steps", "topk"),
    [("perfect", 4, 1), ("noisy", 4, 1), ("noisy", 3, 2), ("noisy", 4, 4), ("unrelated", 2, 2)],
)
def test_both_caches_are_exact_after_every_step(
    tiny: TinyModels, draft: str, num_steps: int, topk: int, page_size: int
) -> None:
    checkpoint = tiny.draft(draft)
    settings = standalone(checkpoint, num_steps=num_steps, topk=topk)
    with open_tiny(tiny.target, settings, page_size=page_size, chunked_prefill_size=8) as engine:
        streams = [
            engine.stream(random_prompt(length, seed=length), greedy(60)) for length in (3, 10, 17)
        ]
        worker = engine.scheduler.spec_worker
        assert isinstance(worker, StandaloneWorker)
        for _ in range(6):
            for stream in streams:
                next(stream)
        for request in engine.scheduler.running:
            assert request.committed_len == len(request.token_ids) - 1
            # The draft has all but what its next forward catches up on.
            assert request.num_prompt_tokens < request.draft_len <= request.committed_len
            target_pool = worker.target.worker.token_to_kv_pool
            assert_exact(engine, target_pool, request, request.committed_len, tiny.target)
            draft_pool = worker.draft.worker.token_to_kv_pool
            assert_exact(engine, draft_pool, request, request.draft_len, checkpoint)


def test_the_targets_cache_is_exact_after_ngram_trees(tiny: TinyModels) -> None:
    with open_tiny(tiny.target, ngram(num_draft_tokens=8, breadth=3)) as engine:
        prompt = random_prompt(9, seed=9)
        engine.generate([prompt], greedy(40))
        stream = engine.stream(prompt, greedy(60))
        for _ in range(5):
            next(stream)
        (request,) = engine.scheduler.running
        assert request.metrics.accepted > 0
        pool = engine.scheduler.spec_worker.target.worker.token_to_kv_pool
        assert_exact(engine, pool, request, request.committed_len, tiny.target)
