"""How many slots the KV cache gets."""

from __future__ import annotations

from app.config.server_args import ServerArgs

DEFAULT_KV_CACHE_BYTES = 1 << 30


def num_kv_pages(
    server_args: ServerArgs,
    *,
    bytes_per_token: int,
    context_len: int,
    num_window_slots: int,
) -> int:
    """Pages of the pool, the padding page included.

    The smaller of `max_total_tokens` and what `kv_cache_memory` holds (target and draft together:
    `bytes_per_token` counts both). With neither it is what `max_running_requests` full contexts
    need, at most 1 GiB.
    """
    page_size = server_args.page_size
    max_running_requests = server_args.max_running_requests
    assert max_running_requests is not None, "resolution sets max_running_requests"
    pages_per_request = -(-(context_len + num_window_slots) // page_size)
    bounds = []
    if server_args.max_total_tokens is not None:
        bounds.append(server_args.max_total_tokens // page_size)
    if server_args.kv_cache_memory is not None:
        bounds.append(server_args.kv_cache_memory // (bytes_per_token * page_size))
    if not bounds:
        bounds.append(pages_per_request * max_running_requests)
        bounds.append(DEFAULT_KV_CACHE_BYTES // (bytes_per_token * page_size))
    wanted = min(bounds)
    minimum = -(-(1 + num_window_slots) // page_size)
    if wanted < minimum:
        raise ValueError(
            f"the KV cache would hold {wanted * page_size} tokens at {bytes_per_token} bytes each, "
            f"but one decode step alone needs {minimum * page_size}: "
            "raise kv_cache_memory or max_total_tokens"
        )
    return wanted + 1
