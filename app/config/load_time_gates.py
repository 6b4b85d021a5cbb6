"""Fields that only loading can decide, because they depend on the machine (algorithms.md 3.7)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import torch

from app.config.dtypes import dtype_name, torch_dtype
from app.config.provenance import DEFAULT_SOURCE
from app.config.server_args import ServerArgs
from app.config.speculative_shape import warn_no_effect

_logger = logging.getLogger(__name__)

DTYPE_GATE = "model_runner.dtype"
CHUNKED_PREFIX_GATE = "model_runner.chunked_prefix_cache_gate"
PREFILL_KERNEL_GATE = "model_runner.prefill_kernel_gate"


def decide_load_time_fields(
    server_args: ServerArgs,
    *,
    dtype: torch.dtype,
    backend_reads_prefix: Callable[[str], bool],
    choose_kernel: Callable[[torch.dtype], str],
) -> Mapping[str, Mapping[str, object]]:
    """source -> fields to change in `server_args`; empty when all is decided.

    `dtype`: the model's, used where the record says auto. `backend_reads_prefix(name)`: whether
    the attention backend can attend to cached tokens. `choose_kernel(dtype)`: the fastest kernel
    of linear layers here. A value that the user set stays; one that a gate set is decided again.
    """
    is_auto = server_args.dtype == "auto"
    gates: dict[str, dict[str, object]] = {
        DTYPE_GATE: {"dtype": dtype_name(dtype)} if is_auto else {},
        CHUNKED_PREFIX_GATE: _chunked_prefix(server_args, backend_reads_prefix),
        PREFILL_KERNEL_GATE: _prefill_kernel(
            server_args, dtype if is_auto else torch_dtype(server_args.dtype), choose_kernel
        ),
    }
    return {source: fields for source, fields in gates.items() if fields}


def _chunked_prefix(
    server_args: ServerArgs, backend_reads_prefix: Callable[[str], bool]
) -> dict[str, object]:
    reads_prefix = backend_reads_prefix(server_args.attention_backend)
    _warn_of_chunk_size(server_args, reads_prefix)
    source = server_args.sources["disable_chunked_prefix_cache"]
    if source not in (DEFAULT_SOURCE, CHUNKED_PREFIX_GATE) and (
        server_args.disable_chunked_prefix_cache or reads_prefix
    ):
        return {}
    if server_args.disable_chunked_prefix_cache == (not reads_prefix):
        return {}
    if source not in (DEFAULT_SOURCE, CHUNKED_PREFIX_GATE):
        # Not a preference that can be kept: the backend would read no prefix at all.
        _logger.warning(
            "disable_chunked_prefix_cache = False (%s) has no effect: attention_backend %s cannot "
            "read a cached prefix",
            source,
            server_args.attention_backend,
        )
    return {"disable_chunked_prefix_cache": not reads_prefix}


def _warn_of_chunk_size(server_args: ServerArgs, reads_prefix: bool) -> None:
    if server_args.chunked_prefill_size == -1:
        return
    if not reads_prefix:
        backend = server_args.attention_backend
        reason = f"attention_backend {backend} prefills prompts in one piece"
    elif server_args.disable_chunked_prefix_cache:
        reason = "disable_chunked_prefix_cache makes prompts prefill in one piece"
    else:
        return
    warn_no_effect(server_args, ("chunked_prefill_size",), reason)


def _prefill_kernel(
    server_args: ServerArgs, dtype: torch.dtype, choose_kernel: Callable[[torch.dtype], str]
) -> dict[str, object]:
    current = server_args.prefill_kernel
    if current is not None and server_args.sources["prefill_kernel"] != PREFILL_KERNEL_GATE:
        return {}
    kernel = choose_kernel(dtype)
    return {} if kernel == current else {"prefill_kernel": kernel}
