"""Loads one model and runs its forwards."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from app.attention.base import BaseAttentionBackend
from app.attention.forward_batch import ForwardBatch
from app.attention.registry import create_attention_backend, reads_cached_prefix
from app.config.dtypes import torch_dtype
from app.config.load_time_gates import decide_load_time_fields
from app.config.model_config import ModelConfig
from app.config.server_args import ServerArgs
from app.kernels.capability import CpuCapability
from app.kernels.prepacked_linear import choose_prefill_kernel
from app.loading.loader import BaseModelLoader
from app.memory.token_to_kv_pool import TokenToKVPool
from app.models.registry import resolve_model_class
from app.runtime_context import RuntimeContext


class ModelRunner:
    """One model, its KV tensors and its attention backend.

    A target's runner decides the load-time fields (algorithms.md 3.7) and records them with
    `RuntimeContext.override`, so that `draft_server_args_copy`, which runs later, starts from them.
    A draft's runner is handed a copy in which they are already decided and overrides nothing.
    Every value that later stages need is an attribute here: after construction nobody reads the
    published record.
    """

    def __init__(
        self,
        *,
        server_args: ServerArgs,
        model_config: ModelConfig,
        loader: BaseModelLoader,
        runtime_context: RuntimeContext,
        cpu_capability: CpuCapability,
        is_draft_worker: bool,
    ) -> None:
        self.model_config = model_config
        self.device = _resolve_device(server_args)
        self._cpu_capability = cpu_capability
        if is_draft_worker:
            self.server_args = server_args
        else:
            for source, fields in self.load_time_gates(server_args).items():
                runtime_context.override(source, **fields)
            self.server_args = runtime_context.resolved
        self._attention_backend_name = self.server_args.attention_backend
        self.kv_cache_dtype = (
            model_config.dtype
            if self.server_args.kv_cache_dtype == "auto"
            else torch_dtype(self.server_args.kv_cache_dtype)
        )
        self.token_to_kv_pool: TokenToKVPool | None = None
        self.attention_backend: BaseAttentionBackend | None = None
        try:
            self.model = loader.load_model(
                model_config,
                resolve_model_class(model_config, self.server_args.model_impl),
                self.server_args.prefill_kernel or "torch",
                self.device,
            )
        except ValueError as error:
            if str(model_config.model_path) in str(error):
                raise
            raise ValueError(f"{model_config.model_path}: {error}") from error

    def load_time_gates(self, server_args: ServerArgs) -> Mapping[str, Mapping[str, object]]:
        """source -> fields that loading decides for `server_args` on this machine."""
        return decide_load_time_fields(
            server_args,
            dtype=self.model_config.dtype,
            backend_reads_prefix=reads_cached_prefix,
            choose_kernel=lambda dtype: choose_prefill_kernel(
                dtype, self.device, self._cpu_capability
            ),
        )

    def alloc_kv_pool(self, num_slots: int) -> None:
        self.token_to_kv_pool = TokenToKVPool(
            num_slots, self.model.kv_geometry, self.kv_cache_dtype, self.device
        )

    def init_attention_backend(self) -> None:
        self.attention_backend = create_attention_backend(self._attention_backend_name)

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        hidden: torch.Tensor = self.model(batch)
        return hidden

    @torch.inference_mode()
    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.model.compute_logits(hidden)


def _resolve_device(server_args: ServerArgs) -> torch.device:
    if server_args.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if server_args.device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "device: cuda was asked for, but torch sees no CUDA device; use cpu or auto"
        )
    return torch.device(server_args.device)
