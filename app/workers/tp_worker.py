"""One rank that runs one model: what spec workers and the scheduler see of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch

from app.attention.base import BaseAttentionBackend
from app.attention.forward_batch import ForwardBatch
from app.config.model_config import ModelConfig
from app.config.server_args import ServerArgs
from app.memory.token_to_kv_pool import KVGeometry, TokenToKVPool
from app.workers.model_runner import ModelRunner


class BaseTpWorker(ABC):
    """Fakes subclass this, so that they stay honest."""

    server_args: ServerArgs
    model_config: ModelConfig
    device: torch.device

    @property
    @abstractmethod
    def kv_geometry(self) -> tuple[KVGeometry, ...]:
        """Shape of each layer's cache."""
        ...

    @property
    @abstractmethod
    def kv_cache_dtype(self) -> torch.dtype: ...

    @property
    @abstractmethod
    def token_to_kv_pool(self) -> TokenToKVPool: ...

    @property
    @abstractmethod
    def attention_backend(self) -> BaseAttentionBackend: ...

    @abstractmethod
    def load_time_gates(self, server_args: ServerArgs) -> Mapping[str, Mapping[str, object]]:
        """source -> fields that loading decides for such a record on this machine."""
        ...

    @abstractmethod
    def alloc_kv_pool(self, num_slots: int) -> None: ...

    @abstractmethod
    def init_attention_backend(self) -> None: ...

    @abstractmethod
    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Hidden states `[num_tokens, hidden_size]` after the final norm."""
        ...

    @abstractmethod
    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[R, hidden_size]` -> `[R, vocab_size]` float32."""
        ...

    @property
    def last_position(self) -> int:
        """The highest position with a meaning; rows beyond it are computed but never used."""
        return self.model_config.context_len - 1


class TpModelWorker(BaseTpWorker):
    """Owns a `ModelRunner`; target and draft are the same class."""

    def __init__(self, model_runner: ModelRunner) -> None:
        self.model_runner = model_runner
        self.server_args = model_runner.server_args
        self.model_config = model_runner.model_config
        self.device = model_runner.device

    @property
    def kv_geometry(self) -> tuple[KVGeometry, ...]:
        return self.model_runner.model.kv_geometry

    @property
    def kv_cache_dtype(self) -> torch.dtype:
        return self.model_runner.kv_cache_dtype

    @property
    def token_to_kv_pool(self) -> TokenToKVPool:
        pool = self.model_runner.token_to_kv_pool
        assert pool is not None, "alloc_kv_pool comes first"
        return pool

    @property
    def attention_backend(self) -> BaseAttentionBackend:
        backend = self.model_runner.attention_backend
        assert backend is not None, "init_attention_backend comes first"
        return backend

    def load_time_gates(self, server_args: ServerArgs) -> Mapping[str, Mapping[str, object]]:
        return self.model_runner.load_time_gates(server_args)

    def alloc_kv_pool(self, num_slots: int) -> None:
        self.model_runner.alloc_kv_pool(num_slots)

    def init_attention_backend(self) -> None:
        self.model_runner.init_attention_backend()

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        return self.model_runner.forward(batch)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.model_runner.compute_logits(hidden)
