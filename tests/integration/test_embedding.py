"""The engine inside a host application's own container."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dependency_injector import containers, errors, providers

from app import EngineContainer, ServerArgs, open_engine
from app.config.sampling_params import SamplingParams
from app.engine import Engine
from app.testing.fakes import FakeTpWorker
from tests.integration.pairs import (
    PROMPTS,
    Pair,
    decode,
    draft_tp_worker,
    swap_in_drafts,
    write_pair,
)

PARAMS = SamplingParams(max_new_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return write_pair(tmp_path_factory.mktemp("pair"))


def engine_lifetime(container: Any) -> Iterator[Engine]:
    with open_engine(container) as engine:
        yield engine


def make_record(fields: dict[str, Any]) -> ServerArgs:
    return ServerArgs(**fields)


class Host(containers.DeclarativeContainer):
    fields = providers.Dependency(instance_of=dict)

    server_args = providers.Singleton(make_record, fields)

    llm = providers.Container(EngineContainer, server_args=server_args)

    engine = providers.Resource(engine_lifetime, llm)


def host_of(pair: Pair, **fields: Any) -> Any:
    record = pair.standalone(**fields)
    given = {field: getattr(record, field) for field in record.model_fields_set}
    return Host(fields=given)


def ids_of(engine: Engine) -> list[tuple[int, ...]]:
    return [result.token_ids for result in engine.generate(PROMPTS, PARAMS)]


def test_a_host_owns_an_engine(pair: Pair) -> None:
    host = host_of(pair)
    engine = host.engine()
    assert host.engine() is engine
    assert isinstance(engine, Engine)
    assert ids_of(engine) == pair.decode_alone()
    assert host.llm.server_args() is host.server_args()
    assert engine.server_args is host.llm.runtime_context().resolved
    host.shutdown_resources()
    with pytest.raises(RuntimeError, match="the engine is closed"):
        engine.generate(PROMPTS, PARAMS)


def test_the_example_of_the_documentation_runs(
    pair: Pair, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (root / "docs" / "embedding.md").read_text("utf-8")
    (example, *_) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert '"smollm2-135m"' in example
    exec(example.replace('"smollm2-135m"', repr(str(pair.target))), {})
    assert capsys.readouterr().out


def test_a_host_opens_its_engine_again(pair: Pair) -> None:
    host = host_of(pair)
    first = host.engine()
    expected = ids_of(first)
    target = host.llm.target.tp_worker()
    host.shutdown_resources()
    second = host.engine()
    assert second is not first
    assert ids_of(second) == expected
    assert host.llm.target.tp_worker() is target, "the target was loaded again"
    host.shutdown_resources()


def test_two_hosts_are_independent(pair: Pair) -> None:
    one, two = host_of(pair, speculative_draft_load_format="dummy"), host_of(pair)
    alone = pair.decode_alone()
    first, second = one.engine(), two.engine()
    assert first.scheduler.pools is not second.scheduler.pools
    assert first.server_args.speculative_draft_load_format == "dummy"
    assert second.server_args.speculative_draft_load_format is None
    assert draft_tp_worker(first.scheduler).server_args.load_format == "dummy"
    assert draft_tp_worker(second.scheduler).server_args.load_format == "auto"
    # Interleaved, step by step.
    streams = [engine.stream(PROMPTS[0], PARAMS) for engine in (first, second)]
    texts: list[list[int]] = [[], []]
    for _ in range(PARAMS.max_new_tokens):
        for stream, text in zip(streams, texts, strict=True):
            delta = next(stream, None)
            text += delta.token_ids if delta is not None else ()
    assert texts == [list(alone[0])] * 2
    one.shutdown_resources()
    assert ids_of(second) == alone
    two.shutdown_resources()


def test_two_engines_in_one_host(pair: Pair) -> None:
    class Both(containers.DeclarativeContainer):
        small = providers.Singleton(ServerArgs, model_path="small")
        large = providers.Singleton(ServerArgs, model_path="large")
        one = providers.Container(EngineContainer, server_args=small)
        two = providers.Container(EngineContainer, server_args=large)

    host: Any = Both()
    assert host.one.target_config().model_path == "small"
    assert host.two.target_config().model_path == "large"
    host.one.runtime_context().override("host", page_size=2)
    assert host.two.runtime_context().resolved.page_size == 1


def test_a_host_swaps_providers_of_its_engine(pair: Pair) -> None:
    host = host_of(pair)
    swap_in_drafts(
        host.llm, tp_worker=providers.Factory(FakeTpWorker, vocab_size=320, context_len=256)
    )
    engine = host.engine()
    assert type(engine.scheduler.spec_worker.draft.worker) is FakeTpWorker
    assert ids_of(engine) == pair.decode_alone()
    other = host_of(pair)
    assert decode(other.llm()) == pair.decode_alone()
    host.shutdown_resources()


def test_a_host_that_gives_another_object_is_told(pair: Pair) -> None:
    class Wrong(containers.DeclarativeContainer):
        llm = providers.Container(EngineContainer, server_args=providers.Object({"a": 1}))

    host: Any = Wrong()
    with pytest.raises(errors.Error, match="ServerArgs"):
        host.llm.target_config()


def test_an_engine_that_cannot_be_built_is_no_resource(pair: Pair) -> None:
    host = host_of(pair, speculative_draft_model_path="/absent/draft")
    with pytest.raises(ValueError, match="speculative_draft_model_path: /absent/draft"):
        host.engine()
    host.shutdown_resources()
    host.llm.runtime_context().override("host", speculative_algorithm=None)
    assert ids_of(host.engine()) == pair.decode_alone()
    host.shutdown_resources()


def test_a_dropped_host_frees_its_models(pair: Pair) -> None:
    host = host_of(pair)
    engine = host.engine()
    models = [
        weakref.ref(host.llm.target.tp_worker().model_runner.model),
        weakref.ref(draft_tp_worker(engine.scheduler).model_runner.model),
    ]
    host.shutdown_resources()
    del host, engine
    gc.collect()
    assert [model() for model in models] == [None, None]


def test_without_a_container(pair: Pair) -> None:
    with open_engine(pair.standalone()) as engine:
        assert ids_of(engine) == pair.decode_alone()
        engine.close()
    engine.close()
