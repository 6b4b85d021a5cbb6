"""What `containers.py` relies on in dependency-injector, one test for each semantic.

An upgrade of the library that changes one of them shows itself here, and not as a draft that leaks
into its target.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from dependency_injector import containers, errors, providers


class Record:
    """Stands for anything that is built; instances can be referred to weakly."""

    def __init__(self, **parts: Any) -> None:
        self.parts = parts


class Draft(containers.DeclarativeContainer):
    record = providers.Dependency(instance_of=Record)

    model = providers.Singleton(Record, record=record)

    worker = providers.Singleton(Record, record=record, model=model)

    spec = providers.Singleton(Record, record=record, worker=worker.provider)


class Target(containers.DeclarativeContainer):
    record = providers.Dependency(instance_of=Record)

    worker = providers.Singleton(Record, record=record)


class Engine(containers.DeclarativeContainer):
    record = providers.Dependency(instance_of=Record)

    target = providers.Container(Target, record=record)

    draft_record = providers.Factory(Record, target_worker=target.worker)

    draft = providers.Factory(Draft, record=draft_record)

    scheduler = providers.Singleton(Record, draft=draft.provider)


@pytest.fixture
def engine() -> Any:
    return Engine(record=Record())


# One record a scope.


def test_a_factory_argument_is_evaluated_once_a_scope(engine: Any) -> None:
    draft = engine.draft()
    record = draft.record()
    assert draft.record() is record
    assert draft.model().parts["record"] is record
    assert draft.worker().parts["record"] is record
    assert draft.spec().parts["record"] is record


def test_a_factory_that_parts_inject_themselves_gives_each_another_object() -> None:
    class Wrong(containers.DeclarativeContainer):
        record = providers.Factory(Record)
        model = providers.Singleton(Record, record=record)
        worker = providers.Singleton(Record, record=record)

    wrong = Wrong()
    assert wrong.model().parts["record"] is not wrong.worker().parts["record"]


def test_every_scope_gets_a_record_of_its_own(engine: Any) -> None:
    one, two = engine.draft(), engine.draft()
    assert one.record() is not two.record()
    assert one.model() is not two.model()
    assert one.record().parts["target_worker"] is two.record().parts["target_worker"]


def test_an_argument_is_built_before_what_it_is_injected_into() -> None:
    order: list[str] = []

    def build(name: str, _: object = None) -> str:
        order.append(name)
        return name

    class Order(containers.DeclarativeContainer):
        worker = providers.Singleton(build, "target worker")
        record = providers.Factory(build, "draft record", worker)

    Order().record()
    assert order == ["target worker", "draft record"]


# Borders hold values.


def test_a_dependency_given_by_value_keeps_its_identity() -> None:
    record = Record()
    assert Draft(record=record).record() is record
    assert Engine(record=record).record() is record


def test_a_nested_container_gets_its_parents_provider(engine: Any) -> None:
    assert engine.target.record() is engine.record()
    assert engine.target.worker().parts["record"] is engine.record()
    assert engine.target().worker() is engine.target.worker()


def test_a_dependency_checks_the_type_when_it_is_called() -> None:
    draft = Draft(record="not a record")
    with pytest.raises(errors.Error, match="not an instance of"):
        draft.record()


def test_a_dependency_that_nobody_gave_is_an_error_naming_it() -> None:
    with pytest.raises(errors.Error, match=r"Draft\.record"):
        Draft().model()


def test_none_as_a_default_needs_an_object_provider() -> None:
    class Optional(containers.DeclarativeContainer):
        undefined = providers.Dependency(default=None)
        optional = providers.Dependency(default=providers.Object(None))

    assert Optional().optional() is None
    with pytest.raises(errors.Error, match="undefined"):
        Optional().undefined()


def test_a_scope_wired_by_value_is_freed_although_its_target_lives(engine: Any) -> None:
    draft = engine.draft()
    dead = [weakref.ref(draft.worker()), weakref.ref(draft.spec()), weakref.ref(draft.record())]
    target_worker = engine.target.worker()
    del draft
    gc.collect()
    assert [ref() for ref in dead] == [None, None, None]
    assert engine.target.worker() is target_worker


def test_a_scope_wired_late_is_kept_alive_by_its_source() -> None:
    """Why borders are `Dependency` and not `DependenciesContainer`."""

    class Late(containers.DeclarativeContainer):
        target = providers.DependenciesContainer()
        worker = providers.Singleton(Record, target=target.worker)

    target = Target(record=Record())
    draft = Late(target=target)
    worker = weakref.ref(draft.worker())
    del draft
    gc.collect()
    assert worker() is not None


def test_a_container_is_not_an_instance_of_its_class(engine: Any) -> None:
    """Why no `Dependency` says `instance_of=EngineContainer`."""
    assert not isinstance(engine, Engine)
    assert engine.declarative_parent is Engine


# Providers that are handed on.


def test_a_provider_argument_builds_nothing_before_it_is_called(engine: Any) -> None:
    built: list[str] = []

    def build() -> Record:
        built.append("worker")
        return Record()

    draft = engine.draft(worker=providers.Singleton(build))
    spec = draft.spec()
    assert built == []
    worker = spec.parts["worker"]()
    assert built == ["worker"]
    assert worker is draft.worker()


def test_a_provider_handed_out_follows_later_overrides(engine: Any) -> None:
    handed_out = engine.scheduler().parts["draft"]
    fake = Record()
    with engine.draft.override(providers.Object(fake)):
        assert handed_out() is fake
    assert handed_out() is not fake


# Singletons.


def test_a_singleton_is_cached_in_its_container_alone(engine: Any) -> None:
    other = Engine(record=Record())
    assert engine.target.worker() is engine.target.worker()
    assert engine.target.worker() is not other.target.worker()


def test_a_failed_build_is_not_cached_but_its_parts_are() -> None:
    attempts: list[Record] = []

    def build(target: Record) -> Record:
        attempts.append(target)
        if len(attempts) == 1:
            raise ValueError("the draft's weights are truncated")
        return Record()

    class Retry(containers.DeclarativeContainer):
        target = providers.Singleton(Record)
        draft = providers.Singleton(build, target)

    retry = Retry()
    with pytest.raises(ValueError, match="truncated"):
        retry.draft()
    assert retry.draft() is retry.draft()
    assert attempts == [retry.target(), retry.target()]


def test_a_singleton_that_gives_none_is_built_again() -> None:
    """Why every provider returns an object."""
    builds: list[int] = []
    nothing = providers.Singleton(builds.append, 1)
    nothing()
    nothing()
    assert builds == [1, 1]


def test_a_cached_singleton_ignores_later_overrides_of_its_inputs(engine: Any) -> None:
    worker = engine.target.worker()
    with engine.record.override(Record()):
        assert engine.target.worker() is worker


# Overrides.


def test_an_override_of_an_instance_stays_in_it(engine: Any) -> None:
    other = Engine(record=Record())
    fake = Record()
    engine.target.worker.override(providers.Object(fake))
    assert engine.target.worker() is fake
    assert other.target.worker() is not fake
    assert Engine(record=Record()).target.worker() is not fake


def test_a_record_as_override_is_given_as_it_is(engine: Any) -> None:
    record = Record()
    with engine.draft_record.override(record):
        assert engine.draft().record() is record
    assert engine.draft().record() is not record


def test_a_function_as_override_is_a_value_and_not_a_factory(engine: Any) -> None:
    """Why overrides are written with `providers.Factory`."""
    with engine.draft_record.override(Record), pytest.raises(errors.Error, match="instance"):
        engine.draft().record()


def test_an_override_of_a_class_is_kept_by_instances_made_meanwhile(engine: Any) -> None:
    before = engine.draft()
    with Draft.worker.override(providers.Factory(Record, is_fake=True)):
        during = engine.draft()
        assert "is_fake" not in before.worker().parts
    after = engine.draft()
    assert during.worker().parts == {"is_fake": True}
    assert during.spec().parts["worker"]().parts == {"is_fake": True}
    assert "is_fake" not in after.worker().parts


def test_a_scope_takes_overrides_as_arguments(engine: Any) -> None:
    fake = engine.draft(worker=providers.Factory(Record, is_fake=True))
    assert fake.spec().parts["worker"]().parts == {"is_fake": True}
    assert "is_fake" not in engine.draft().worker().parts


def test_a_provider_among_a_factorys_own_arguments_is_called_with_it(engine: Any) -> None:
    """Why a fake for every draft of one engine is handed to `add_kwargs` by its `.provider`."""
    built: list[Record] = []

    def build() -> Record:
        built.append(Record())
        return built[-1]

    engine.draft.add_kwargs(worker=providers.Factory(build))
    scope = engine.draft()
    assert len(built) == 1
    assert scope.worker() is built[0]
    other: Any = Engine(record=Record())
    other.draft.add_kwargs(worker=providers.Factory(build).provider)
    scope = other.draft()
    assert len(built) == 1
    assert scope.worker() is built[1]


def test_an_override_of_a_nested_provider_may_use_its_siblings(engine: Any) -> None:
    """`without_weights` replaces the target's loader by one that needs the target's config."""
    engine.target.worker.override(providers.Singleton(Record, again=engine.target.record))
    assert engine.target.worker().parts["again"] is engine.record()


def test_call_arguments_reach_a_factory_beside_its_own(engine: Any) -> None:
    """`draft_config(overrides=...)` and `draft_scope(...)`."""
    record = engine.draft_record(overrides=3)
    assert record.parts == {"target_worker": engine.target.worker(), "overrides": 3}


def test_a_wrong_override_name_is_an_error_for_a_scope(engine: Any) -> None:
    with pytest.raises(AttributeError, match="wroker"):
        engine.draft(wroker=providers.Factory(Record))


# Copies.


def test_a_literal_argument_is_copied_with_the_container() -> None:
    """Why provider arguments are providers or primitives."""
    shared = Record()

    class Literal(containers.DeclarativeContainer):
        copied = providers.Factory(dict, value=shared)
        kept = providers.Object(shared)

    assert Literal().copied()["value"] is not shared
    assert Literal().kept() is shared


# A host's container around the engine's.


def test_an_engine_lives_in_a_hosts_container_with_one_resource() -> None:
    events: list[str] = []

    def lifetime(container: Any) -> Iterator[Any]:
        events.append("open")
        yield container.target.worker()
        events.append("close")

    class Host(containers.DeclarativeContainer):
        record = providers.Singleton(Record)
        llm = providers.Container(Engine, record=record)
        engine = providers.Resource(lifetime, llm)

    one, two = Host(), Host()
    assert one.engine() is one.engine() is one.llm.target.worker()
    assert one.llm.record() is one.record()
    assert two.engine() is not one.engine()
    one.shutdown_resources()
    assert events == ["open", "open", "close"]
