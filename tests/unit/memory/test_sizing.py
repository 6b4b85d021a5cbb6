"""How many pages the KV cache gets, and who says so."""

from __future__ import annotations

from typing import Any

import pytest

from app.config.server_args import ServerArgs
from app.memory.sizing import DEFAULT_KV_CACHE_BYTES, num_kv_pages

CONTEXT_LENGTH, WINDOW = 100, 4


def pages(bytes_per_token: int = 64, **fields: Any) -> int:
    args = ServerArgs(model_path="x", **({"max_running_requests": 2} | fields))
    return num_kv_pages(
        args,
        bytes_per_token=bytes_per_token,
        context_len=CONTEXT_LENGTH,
        num_window_slots=WINDOW,
    )


@pytest.mark.parametrize(("page_size", "expected"), [(1, 2 * 104), (16, 2 * 7)])
def test_by_default_every_request_may_fill_its_context(page_size: int, expected: int) -> None:
    # One more is the page that padded rows write to.
    assert pages(page_size=page_size) == expected + 1


def test_the_default_has_a_limit() -> None:
    assert pages(bytes_per_token=1 << 24) == DEFAULT_KV_CACHE_BYTES // (1 << 24) + 1


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("bytes_per_token", [64, 96])
def test_memory_is_shared_by_target_and_draft(page_size: int, bytes_per_token: int) -> None:
    found = pages(bytes_per_token, page_size=page_size, kv_cache_memory="64KiB")
    assert found - 1 == 64 * 1024 // (bytes_per_token * page_size)


def test_the_smaller_of_tokens_and_memory_counts() -> None:
    assert pages(max_total_tokens=50, kv_cache_memory="1GiB") == 51
    by_memory = pages(kv_cache_memory="64KiB")
    assert pages(max_total_tokens=10**9, kv_cache_memory="64KiB") == by_memory
    assert pages(max_total_tokens=50, page_size=16) == 4


@pytest.mark.parametrize(
    "fields", [{"max_total_tokens": 4}, {"kv_cache_memory": 64}, {"max_total_tokens": 15,
                                                                "page_size": 16}]
)  # fmt: skip
def test_a_cache_that_cannot_hold_one_step_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="raise kv_cache_memory or max_total_tokens"):
        pages(**fields)
