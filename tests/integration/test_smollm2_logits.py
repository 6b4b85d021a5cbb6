"""On real weights and real text the native model says what transformers' implementation says."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from app.attention.forward_batch import ForwardMode
from app.config.model_path import models_root
from app.config.server_args import ServerArgs
from app.engine import build_container
from app.loading.model_zoo import ensure_available
from app.memory.allocator import PagedAllocator
from app.memory.pools import MemoryPools
from app.memory.req_to_token_pool import ReqToTokenPool
from app.workers.forward_batch_builder import CausalRows, causal_batch
from tests.conftest import ROOT

MODEL = "smollm2-135m"
NUM_POSITIONS = 200
# One bf16 step at this model's logits is 0.125: closer than two steps, rounding decides.
BF16_TIE_GAP = 0.25


@pytest.fixture(scope="module")
def token_ids() -> list[int]:
    """The first tokens of the longest test prompt and those behind it."""
    ensure_available(MODEL)
    lines = (ROOT / "tests/data/prompts.jsonl").read_text("utf-8").splitlines()
    texts = sorted((str(json.loads(line).get("prompt", "")) for line in lines), key=len)
    tokenizer = AutoTokenizer.from_pretrained(models_root() / MODEL)
    ids: list[int] = tokenizer("\n\n".join(reversed(texts)))["input_ids"]
    return ids[:NUM_POSITIONS]


def reference_logits(token_ids: list[int], dtype: torch.dtype) -> torch.Tensor:
    load: Any = AutoModelForCausalLM.from_pretrained
    model = load(models_root() / MODEL, dtype=dtype, attn_implementation="eager").eval()
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([token_ids])).logits[0]
    return logits.float()


def engine_logits(token_ids: list[int], dtype: str) -> torch.Tensor:
    """Of every position, computed in two pieces as chunked prefill does."""
    worker = build_container(ServerArgs(model_path=MODEL, dtype=dtype)).target.tp_worker()
    cpu = torch.device("cpu")
    pools = MemoryPools(ReqToTokenPool(1, NUM_POSITIONS, cpu), PagedAllocator(NUM_POSITIONS + 1, 1))
    worker.alloc_kv_pool(pools.num_slots)
    worker.init_attention_backend()
    row = pools.req_to_token_pool.take_row()
    slots = pools.allocator.alloc(NUM_POSITIONS)
    assert slots is not None
    pools.req_to_token_pool.append(row, slots)
    logits = []
    for start, end in ((0, 130), (130, NUM_POSITIONS)):
        rows = [CausalRows(row, start, token_ids[start:end])]
        batch = causal_batch(ForwardMode.EXTEND, rows, worker, pools)
        logits.append(worker.compute_logits(worker.forward(batch)))
    return torch.cat(logits)


def test_float32_predicts_the_same_token_at_every_position(token_ids: list[int]) -> None:
    expected, found = (
        reference_logits(token_ids, torch.float32),
        engine_logits(token_ids, "float32"),
    )
    assert len(found) == NUM_POSITIONS
    assert torch.equal(found.argmax(dim=-1), expected.argmax(dim=-1))
    assert (found - expected).abs().max() < 5e-3


def test_bfloat16_predicts_the_same_token_except_at_ties(token_ids: list[int]) -> None:
    expected, found = (
        reference_logits(token_ids, torch.bfloat16),
        engine_logits(token_ids, "bfloat16"),
    )
    top2 = expected.topk(2, dim=-1).values
    is_clear = top2[:, 0] - top2[:, 1] >= BF16_TIE_GAP
    assert is_clear.sum() > NUM_POSITIONS / 2
    differs = found.argmax(dim=-1) != expected.argmax(dim=-1)
    assert not (differs & is_clear).any()
