"""Workers and models without weights, for tests of everything around the models."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from transformers import PretrainedConfig

from app.attention.base import BaseAttentionBackend
from app.attention.forward_batch import AttentionSpan, ForwardBatch
from app.config.model_config import ModelConfig
from app.config.server_args import ServerArgs
from app.layers.attention import PagedAttention
from app.memory.token_to_kv_pool import KVGeometry, TokenToKVPool
from app.workers.tp_worker import BaseTpWorker

# The tokens that a row sees, in order of position and itself last -> logits `[vocab_size]`.
LogitsFunction = Callable[[Sequence[int]], torch.Tensor]

_MODEL_PATH = "fake"


def hashed_logits(vocab_size: int, *, seed: int = 0, order: int | None = None) -> LogitsFunction:
    """Random logits that are a pure function of the last `order` tokens (None: of all).

    One token out of place anywhere in what a row sees changes everything after it.
    """

    def logits(tokens: Sequence[int]) -> torch.Tensor:
        seen = tuple(tokens) if order is None else tuple(tokens)[-order:]
        digest = hashlib.blake2b(repr((seed, seen)).encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
        return torch.randn(vocab_size, generator=generator)

    return logits


def canned_logits(vocab_size: int, next_token: Callable[[Sequence[int]], int]) -> LogitsFunction:
    """All probability on `next_token(tokens)`: drafts that are always, never or sometimes right."""

    def logits(tokens: Sequence[int]) -> torch.Tensor:
        values = torch.full((vocab_size,), -100.0)
        values[next_token(tokens)] = 100.0
        return values

    return logits


def fake_model_config(*, vocab_size: int, context_len: int) -> ModelConfig:
    """Facts of a model that does not exist; its path holds no tokenizer."""
    return ModelConfig(
        model_path=Path(_MODEL_PATH),
        hf_config=PretrainedConfig(),
        architecture="FakeForCausalLM",
        dtype=torch.float32,
        context_len=context_len,
        vocab_size=vocab_size,
        hidden_size=vocab_size,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=1,
        quantization=None,
        hf_eos_token_ids=(),
        has_learned_positions=False,
        max_position_embeddings=context_len,
    )


class FakeTpWorker(BaseTpWorker):
    """Stands in for a `TpModelWorker`; its cache is real, its model is a `LogitsFunction`.

    It keeps each token in the KV pool as the key of its slot and its position as the value, and a
    row's logits come from what the row finds there. So wrong slots, masks, positions or compactions
    give wrong text, as with a real model. Hidden states are the logits. `batches` records every
    forward.
    """

    def __init__(
        self,
        logits: LogitsFunction | None = None,
        *,
        vocab_size: int = 64,
        context_len: int = 128,
        server_args: ServerArgs | None = None,
    ) -> None:
        self.server_args = server_args or ServerArgs(model_path=_MODEL_PATH)
        self.model_config = fake_model_config(vocab_size=vocab_size, context_len=context_len)
        self.device = torch.device("cpu")
        self.batches: list[ForwardBatch] = []
        self._logits = logits or hashed_logits(vocab_size)
        self._pool: TokenToKVPool | None = None
        self._attention = _NoAttention()

    @property
    def kv_geometry(self) -> tuple[KVGeometry, ...]:
        return (KVGeometry(num_kv_heads=1, head_dim=1),)

    @property
    def kv_cache_dtype(self) -> torch.dtype:
        return torch.float32

    @property
    def token_to_kv_pool(self) -> TokenToKVPool:
        assert self._pool is not None, "alloc_kv_pool comes first"
        return self._pool

    @property
    def attention_backend(self) -> BaseAttentionBackend:
        return self._attention

    def load_time_gates(self, server_args: ServerArgs) -> Mapping[str, Mapping[str, object]]:
        return {}

    def alloc_kv_pool(self, num_slots: int) -> None:
        self._pool = TokenToKVPool(num_slots, self.kv_geometry, self.kv_cache_dtype, self.device)

    def init_attention_backend(self) -> None:
        return None

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        self.batches.append(batch)
        pool = batch.token_to_kv_pool
        pool.write(
            0,
            batch.out_cache_loc,
            batch.input_ids.view(-1, 1, 1).float(),
            batch.positions.view(-1, 1, 1).float(),
        )
        rows = [
            self._logits(_visible_tokens(pool, span, row, batch))
            for span in batch.spans
            for row in range(span.num_rows)
        ]
        return torch.stack(rows)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


def _visible_tokens(
    pool: TokenToKVPool, span: AttentionSpan, row: int, batch: ForwardBatch
) -> list[int]:
    """What row `row` of a span sees, by position; its own token must be the last."""
    visible = torch.ones(span.num_keys, dtype=torch.bool)
    if span.mask is None:
        visible[span.prefix_len + row + 1 :] = False
    else:
        visible[span.prefix_len :] = span.mask[row]
    slots = span.kv_slots[visible]
    positions = pool.v[0][slots, 0, 0].long()
    tokens = pool.k[0][slots, 0, 0].long()[positions.argsort(stable=True)].tolist()
    assert int(positions.max()) == int(batch.positions[span.row_start + row]), (
        "a row sees a token behind its own position"
    )
    return [int(token) for token in tokens]


class _NoAttention(BaseAttentionBackend):
    """Fakes do not attend."""

    name = "none"
    supports_cached_prefix = True

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: PagedAttention,
        batch: ForwardBatch,
    ) -> torch.Tensor:
        raise AssertionError("a fake model has no attention layers")
