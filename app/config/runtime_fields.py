"""Fields of `ServerArgs` that say how the engine computes and what it may use."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field, PositiveInt

from app.config.field_types import AttentionBackend, ByteSize, ChunkSize, DType, PowerOfTwo


def _as_names(value: object) -> object:
    """One name may stand for a list of one."""
    return (value,) if isinstance(value, str) else value


class RuntimeFields(BaseModel):
    """How the engine computes and what it may use."""

    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="Where the models run; auto: cuda where there is one."
    )
    kv_cache_dtype: DType = Field(
        default="auto", description="Type of cached keys and values; auto: the model's dtype."
    )
    attention_backend: AttentionBackend = Field(
        default="torch_paged",
        description="Attention of the target; torch_dense cannot read a cached prefix, so it "
        "prefills prompts in one piece.",
    )
    prefill_kernel: Literal["onednn_bf16", "torch"] | None = Field(
        default=None,
        description="Kernel of linear layers; unset: chosen while loading from what the CPU can "
        "do.",
    )
    disable_chunked_prefix_cache: bool = Field(
        default=False,
        description="Never continue a prefill behind cached tokens; switched on while loading "
        "for a backend that cannot.",
    )
    chunked_prefill_size: ChunkSize = Field(
        default=512, description="Most prompt tokens in one forward; -1: whole prompts."
    )
    max_running_requests: PositiveInt | None = Field(
        default=None, description="Most requests decoded at once; unset: 48."
    )
    page_size: PowerOfTwo = Field(
        default=1, description="Tokens per page of the key-value cache, a power of two."
    )
    kv_cache_memory: ByteSize | None = Field(
        default=None,
        description="Bytes for keys and values, drafts included (512MiB, 1GiB); unset: what "
        "max_running_requests full contexts need, at most 1GiB. With max_total_tokens too, the "
        "smaller of both counts.",
    )
    max_total_tokens: PositiveInt | None = Field(
        default=None,
        description="Most tokens in the key-value cache; kv_cache_memory may allow fewer. Unset: "
        "kv_cache_memory alone decides.",
    )
    random_seed: Annotated[int, Field(ge=0, lt=2**63)] | None = Field(
        default=None, description="Seed of requests that bring none; unset: a fresh one."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="warning", description="Lowest level of log lines on standard error."
    )
    plugins: Annotated[tuple[str, ...], BeforeValidator(_as_names)] = Field(
        default=(),
        description="Plugin algorithms as package.module:attribute, besides entry points.",
    )
