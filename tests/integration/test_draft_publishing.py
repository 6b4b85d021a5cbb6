"""The draft's record is the published one while the draft is built, and at no other time."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from dependency_injector import providers

from app.config.server_args import ServerArgs
from app.engine import open_engine
from app.runtime_context import RuntimeContext
from app.workers.standalone_worker import StandaloneWorker
from tests.integration.pairs import (
    EVERYTHING_DIFFERS,
    Pair,
    Probe,
    control_fails,
    decode,
    swap_in_drafts,
    target_view,
    write_pair,
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return write_pair(tmp_path_factory.mktemp("pair"))


# 6. and 7. Factory and worker get one record, published while they run and not afterwards.


def assert_published_while_building(probe: Probe, build: Callable[[], object]) -> None:
    context: RuntimeContext = probe.container.runtime_context()
    probe.container.target.tp_worker()
    target = context.resolved
    if probe.fails_in is None:
        build()
    else:
        with pytest.raises(RuntimeError, match=probe.fails_in):
            build()
    assert context.server_args is target, "the draft's record stayed published"
    assert probe.factory_record is not None
    assert probe.factory_record.load_format == "dummy"
    for published in probe.published:
        assert published is probe.factory_record, "another record than the factory's is published"
    if probe.worker_record is not None:
        assert probe.worker_record is probe.factory_record, "factory and worker see two records"
    assert target.load_format == "auto"


@pytest.mark.parametrize("place", [None, "factory", "worker", "worker with draft"])
def test_the_drafts_record_is_published_while_the_draft_is_built(
    pair: Pair, place: str | None
) -> None:
    probe = Probe(fails_in=place)
    container = probe.build(pair, speculative_draft_load_format="dummy")
    assert_published_while_building(probe, container.scheduler)


def test_control_a_draft_that_is_built_without_publishing(pair: Pair) -> None:
    probe = Probe()
    container = probe.build(pair, speculative_draft_load_format="dummy")
    with control_fails("another record than the factory's"):
        assert_published_while_building(probe, lambda: container.draft_scope().spec_worker())


def test_control_a_scope_whose_parts_each_copy_the_record(pair: Pair) -> None:
    probe = Probe()
    container = probe.build(pair, speculative_draft_load_format="dummy")

    def twice(record: Callable[[], ServerArgs], algorithms: Any, **parts: Any) -> Any:
        worker_class = algorithms.get("PROBE").create_worker(record())
        return worker_class(server_args=record(), **parts)

    swap_in_drafts(
        container,
        spec_worker=providers.Factory(
            twice,
            container.draft_config.provider,
            container.algorithms,
            target_worker=container.target.tp_worker,
            draft_worker=container.target.tp_worker.provider,
        ),
    )
    with control_fails("another record than the factory's|two records"):
        assert_published_while_building(probe, container.scheduler)


def test_a_copy_made_while_the_draft_is_published_starts_from_the_target(pair: Pair) -> None:
    probe = Probe()
    container = probe.build(pair, **EVERYTHING_DIFFERS)
    container.scheduler()
    assert len(probe.copies) == 3
    assert all(copy == probe.worker_record for copy in probe.copies)
    assert all(copy.load_format == "dummy" for copy in probe.copies)
    # Of another draft: nothing of it may appear in this one's record.
    other = probe.copies[0].derive("test", {"chunked_prefill_size": 3, "page_size": 2})
    with container.runtime_context().published(other):
        assert container.draft_config() == probe.worker_record
        assert container.draft_scope().server_args() == probe.worker_record


# P1. After construction nobody reads the published record.


class UnreadableRecord(ServerArgs):
    """Raises on every read of a field."""

    def __getattribute__(self, name: str) -> Any:
        if name in ServerArgs.model_fields or name == "sources":
            raise AssertionError(f"the published record was read after construction: {name}")
        return super().__getattribute__(name)


def decode_under_an_unreadable_record(container: Any) -> list[tuple[int, ...]]:
    """Build the worker as ever, then run pools, backends and decoding under the record."""
    context: RuntimeContext = container.runtime_context()
    container.target.tp_worker()
    unreadable = UnreadableRecord.from_sources({"model_path": "unreadable"}, {})
    worker = container.draft_scope().spec_worker
    scope = container.draft_scope()
    with context.published(scope.server_args()):
        worker = scope.spec_worker()
    container.draft_scope.override(providers.Object(scope))
    with context.published(unreadable):
        # The hand-off publishes the draft's record once more; the worker exists already.
        assert scope.spec_worker() is worker
        return decode(container)


@pytest.mark.parametrize(
    "shape", [{}, {"speculative_num_steps": 2, "speculative_eagle_topk": 2,
                   "speculative_num_draft_tokens": 5}]
)  # fmt: skip
def test_nobody_reads_the_published_record_after_construction(
    pair: Pair, shape: dict[str, Any]
) -> None:
    container = pair.build(speculative_draft_load_format="dummy", **shape)
    assert decode_under_an_unreadable_record(container) == pair.decode_alone()


@pytest.mark.parametrize("method", ["alloc_memory_pool", "init_attention_backends", "propose"])
def test_control_a_worker_that_reads_the_published_record_later(
    pair: Pair, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = pair.build()
    original = getattr(StandaloneWorker, method)

    def reading(self: Any, *args: Any) -> Any:
        assert container.runtime_context().server_args.load_format
        return original(self, *args)

    monkeypatch.setattr(StandaloneWorker, method, reading)
    with control_fails("read after construction: load_format"):
        decode_under_an_unreadable_record(container)


def test_status_shows_the_targets_values_after_the_draft_was_built(pair: Pair) -> None:
    container = pair.build(**EVERYTHING_DIFFERS)
    container.target.tp_worker()
    expected = json.loads(container.runtime_context().resolved.model_dump_json())
    with open_engine(container) as engine:
        assert engine.status()["server_args"] == expected
    assert expected["model_path"] == str(pair.target)
    assert expected["context_length"] is None
    assert (
        target_view(container)["record"] == container.runtime_context().resolved.model_dump_json()
    )
