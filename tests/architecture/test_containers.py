"""The shape of the container graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from dependency_injector import containers, providers

import app.containers
from app.provider_graph import ProviderGraph, build_provider_graph

# The library's own container API: a provider of such a name would hide it, mostly silently.
RESERVED_NAMES = frozenset(
    [
        "apply_container_providers_overridings",
        "assign_parent",
        "auto_load_config",
        "check_dependencies",
        "cls_providers",
        "containers",
        "declarative_parent",
        "dependencies",
        "from_json_schema",
        "from_schema",
        "from_yaml_schema",
        "inherited_providers",
        "init_resources",
        "instance_type",
        "is_auto_wiring_enabled",
        "load_config",
        "overridden",
        "override",
        "override_providers",
        "parent",
        "parent_name",
        "provider_type",
        "providers",
        "reset_last_overriding",
        "reset_override",
        "reset_singletons",
        "resolve_provider_name",
        "set_provider",
        "set_providers",
        "shutdown_resources",
        "traverse",
        "unwire",
        "wire",
        "wired_to_modules",
        "wired_to_packages",
        "wiring_config",
    ]
)
BORDER = {"server_args", "runtime_context", "target_worker", "algorithms"}
PRIMITIVES = (str, int, float, bool, type(None))

ALL_CONTAINERS = [
    value
    for value in vars(app.containers).values()
    if isinstance(value, type) and issubclass(value, containers.DeclarativeContainer)
    if value is not containers.DeclarativeContainer
]


@pytest.fixture(scope="module")
def graph() -> ProviderGraph:
    return build_provider_graph(app.containers.EngineContainer)


def hidden_names(container: type[containers.DeclarativeContainer]) -> set[str]:
    api = {name for name in dir(containers.DynamicContainer) if not name.startswith("_")}
    return (RESERVED_NAMES | api) & set(container.providers)


def faulty_arguments(container: type[containers.DeclarativeContainer]) -> Iterator[str]:
    """Arguments that are neither providers nor primitives: they are copied with the container."""
    for name, provider in container.providers.items():
        values: list[Any] = [*(getattr(provider, "args", None) or ())]
        values += (getattr(provider, "kwargs", None) or {}).values()
        for value in values:
            if not isinstance(value, (providers.Provider, *PRIMITIVES)):
                yield f"{name}: {value!r}"


def test_all_containers_are_looked_at() -> None:
    names = {container.__name__ for container in ALL_CONTAINERS}
    assert {"TargetScope", "DraftScope", "EngineContainer", "ApplicationContainer"} <= names
    assert len(RESERVED_NAMES) == 36


@pytest.mark.parametrize("container", ALL_CONTAINERS, ids=lambda c: c.__name__)
def test_no_provider_hides_container_api(container: Any) -> None:
    assert hidden_names(container) == set()


def test_a_hiding_name_is_seen() -> None:
    class Hiding(containers.DeclarativeContainer):
        load_config = providers.Object(1)

    assert hidden_names(Hiding) == {"load_config"}


@pytest.mark.parametrize("container", ALL_CONTAINERS, ids=lambda c: c.__name__)
def test_provider_arguments_are_providers_or_primitives(container: Any) -> None:
    assert list(faulty_arguments(container)) == []


def test_a_literal_argument_is_seen() -> None:
    class Literal(containers.DeclarativeContainer):
        shared = providers.Factory(dict, values=[1, 2])

    assert list(faulty_arguments(Literal)) == ["shared: [1, 2]"]


def test_the_border_of_the_draft_scope_is_four_values() -> None:
    border = {
        name
        for name, provider in app.containers.DraftScope.providers.items()
        if isinstance(provider, providers.Dependency)
    }
    assert border == BORDER


def entries_besides_the_border(graph: ProviderGraph, node_id: str, scope: str) -> list[str]:
    """Edges that lead into `scope` from outside without passing its border, above `node_id`."""
    border = {node.id for node in graph.nodes_of(scope) if node.is_border}
    inside = {node.id for node in graph.nodes_of(scope)}
    needed = graph.reachable_from(node_id)
    return [
        f"{edge.source} -> {edge.target}"
        for edge in graph.edges
        if edge.target in needed & (inside - border) and edge.source not in inside
    ]


def test_everything_a_draft_is_made_of_lies_in_its_scope(graph: ProviderGraph) -> None:
    assert entries_besides_the_border(graph, "draft_scope.spec_worker", "draft_scope") == []
    needed = graph.reachable_from("draft_scope.spec_worker")
    assert {"draft_scope.tp_worker", "draft_scope.model_config"} <= needed


def test_a_leak_into_the_draft_scope_is_seen() -> None:
    class Scope(containers.DeclarativeContainer):
        server_args = providers.Dependency()
        model_config = providers.Singleton(dict, server_args)
        spec_worker = providers.Singleton(dict, config=model_config)

    class Engine(containers.DeclarativeContainer):
        target_model_config = providers.Singleton(dict)
        draft_scope = providers.Factory(Scope, server_args=providers.Factory(dict))

    # The mistake: a part of the draft is wired to the target's object.
    Scope.spec_worker.add_kwargs(config=Engine.target_model_config)
    leaks = entries_besides_the_border(
        build_provider_graph(Engine), "draft_scope.spec_worker", "draft_scope"
    )
    assert leaks == ["target_model_config -> draft_scope.spec_worker"]


def test_the_draft_record_is_made_once_a_scope(graph: ProviderGraph) -> None:
    users = [edge.target for edge in graph.edges if edge.source == "draft_config"]
    assert users == ["draft_scope.server_args"]


def test_the_draft_record_waits_for_the_loaded_target(graph: ProviderGraph) -> None:
    assert "target.tp_worker" in graph.reachable_from("draft_config")


def test_the_draft_model_is_handed_on_as_a_provider(graph: ProviderGraph) -> None:
    edges = [
        e for e in graph.inputs_of("draft_scope.spec_worker") if e.source.endswith("tp_worker")
    ]
    assert [edge.is_late for edge in edges] == [True]
