from __future__ import annotations

import contextvars
import gc
import threading
import weakref
from collections.abc import Callable

import pytest

from app.config.server_args import ServerArgs
from app.runtime_context import RuntimeContext

TARGET = ServerArgs(model_path="target")
DRAFT = ServerArgs(model_path="draft", load_format="dummy")
OTHER = ServerArgs(model_path="other")


def in_thread(function: Callable[[], object]) -> object:
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def test_published_is_seen_inside_only_and_nests() -> None:
    context = RuntimeContext(TARGET)
    assert context.server_args is TARGET
    with context.published(DRAFT) as published:
        assert published is DRAFT
        assert context.server_args is DRAFT
        assert context.resolved is TARGET
        with context.published(OTHER):
            assert context.server_args is OTHER
        assert context.server_args is DRAFT
    assert context.server_args is TARGET


def test_published_is_restored_after_an_error() -> None:
    context = RuntimeContext(TARGET)
    with pytest.raises(KeyError), context.published(DRAFT), context.published(OTHER):
        raise KeyError
    assert context.server_args is TARGET
    context.override("test", page_size=2)


def test_two_engines_are_independent() -> None:
    one, two = RuntimeContext(TARGET), RuntimeContext(OTHER)
    with one.published(DRAFT):
        assert two.server_args is OTHER
        two.override("test", page_size=2)
        with two.published(TARGET):
            assert one.server_args is DRAFT
            assert two.server_args is TARGET
    assert one.resolved.page_size == 1


def test_threads_see_the_record_under_a_copied_context_only() -> None:
    context = RuntimeContext(TARGET)
    with context.published(DRAFT):
        copied = contextvars.copy_context()
        assert in_thread(lambda: copied.run(lambda: context.server_args)) is DRAFT
        assert in_thread(lambda: context.server_args) is TARGET


def test_a_copied_context_keeps_no_engine_alive() -> None:
    context = RuntimeContext(TARGET)
    with context.published(DRAFT):
        copied = contextvars.copy_context()
    reference = weakref.ref(context)
    del context
    gc.collect()
    assert reference() is None
    assert RuntimeContext(TARGET).server_args is TARGET
    assert copied.run(lambda: RuntimeContext(OTHER).server_args) is OTHER


def test_override_replaces_the_record_and_is_logged() -> None:
    context = RuntimeContext(TARGET)
    context.override("gate", disable_chunked_prefix_cache=True, prefill_kernel="torch")
    context.override("late", context_length=128)
    assert context.resolved.disable_chunked_prefix_cache
    assert context.resolved.sources["prefill_kernel"] == "gate"
    assert context.server_args is context.resolved
    assert context.overrides == (
        ("gate", {"disable_chunked_prefix_cache": True, "prefill_kernel": "torch"}),
        ("late", {"context_length": 128}),
    )
    assert TARGET.context_length is None


@pytest.mark.parametrize("fields", [{"page_sise": 2}, {"page_size": 3}])
def test_override_is_all_or_nothing(fields: dict[str, object]) -> None:
    context = RuntimeContext(TARGET)
    with pytest.raises(ValueError, match="page_si"):
        context.override("gate", context_length=128, **fields)
    assert context.resolved is TARGET
    assert context.overrides == ()


def test_override_is_refused_while_published_even_from_another_thread() -> None:
    context = RuntimeContext(TARGET)

    def attempt() -> str:
        with pytest.raises(RuntimeError, match="gate: the engine's record cannot change") as caught:
            context.override("gate", page_size=2)
        return str(caught.value)

    with context.published(DRAFT):
        attempt()
        assert "page_size" in str(in_thread(attempt))
    assert context.resolved is TARGET
    context.override("gate", page_size=2)
    assert context.resolved.page_size == 2


def test_concurrent_overrides_lose_nothing() -> None:
    context = RuntimeContext(TARGET)
    fields = ["context_length", "max_running_requests", "max_total_tokens", "random_seed"]
    threads = [
        threading.Thread(target=lambda f=field: context.override("test", **{f: 7}))
        for field in fields
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [getattr(context.resolved, field) for field in fields] == [7] * 4
    assert len(context.overrides) == 4
