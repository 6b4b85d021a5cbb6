"""The providers of a container as nodes and edges, read from the container itself.

Providers are known here by their attributes, not by their classes: only `containers.py` imports the
library that makes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

# Views on what a provider makes. They answer to every attribute name, so they are told apart first.
_GETTERS = ("AttributeGetter", "ItemGetter", "MethodCaller", "ProvidedInstance")
# Answers for the provider behind it.
_DEPENDENCY = "Dependency"


@dataclass(frozen=True, slots=True)
class Node:
    """One provider. `scope` is the path of its container, "" for the outermost."""

    id: str
    name: str
    scope: str
    kind: str
    makes: str
    is_border: bool


@dataclass(frozen=True, slots=True)
class Edge:
    """`target` receives `source` as `argument` ("" when positional).

    `is_late`: it receives the provider itself and calls it when it needs the value.
    """

    source: str
    target: str
    argument: str
    is_late: bool


@dataclass(frozen=True, slots=True)
class Scope:
    """A container; `border` holds the nodes through which everything from outside enters."""

    path: str
    name: str
    border: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProviderGraph:
    """All providers reachable from one container, nested scopes included."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    scopes: tuple[Scope, ...]

    def nodes_of(self, scope: str) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.scope == scope)

    def inputs_of(self, node_id: str) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.edges if edge.target == node_id)

    def reachable_from(self, node_id: str) -> frozenset[str]:
        """Everything that is needed, directly or not, to build `node_id`, itself included."""
        seen: set[str] = set()
        waiting = [node_id]
        while waiting:
            current = waiting.pop()
            if current not in seen:
                seen.add(current)
                waiting += [edge.source for edge in self.inputs_of(current)]
        return frozenset(seen)

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def build_provider_graph(container: Any) -> ProviderGraph:
    """The graph of a container class or instance."""
    found = list(_walk(container, ""))
    node_of = {id(provider): node.id for node, provider in found}
    edges: list[Edge] = []
    for node, provider in found:
        for argument, source, is_late in _inputs(provider):
            # The arguments of a scope's factory enter the scope through its border.
            target = node.id
            if _scope_class(provider) is not None and argument:
                target = f"{node.id}.{argument}"
            for source_id, late in _named(source, node_of, is_late):
                edges.append(Edge(source_id, target, argument, late))
    nodes = tuple(node for node, _ in found if node.kind != "Container")
    known = {node.id for node in nodes}
    unique = tuple(dict.fromkeys(e for e in edges if e.target in known and e.source in known))
    return ProviderGraph(nodes, unique, tuple(_scopes(container, "", nodes)))


def _walk(container: Any, path: str) -> Iterator[tuple[Node, Any]]:
    for name, provider in container.providers.items():
        node_id = f"{path}.{name}" if path else name
        kind = type(provider).__name__
        made = getattr(provider, "provides", None)
        is_border = kind == _DEPENDENCY
        makes = "" if is_border else str(getattr(made, "__name__", ""))
        yield Node(node_id, name, path, kind, makes, is_border), provider
        inner = _inner_container(provider)
        if inner is not None:
            yield from _walk(inner, node_id)


def _scopes(container: Any, path: str, nodes: tuple[Node, ...]) -> Iterator[Scope]:
    parent = getattr(container, "declarative_parent", None) or container
    border = tuple(node.id for node in nodes if node.scope == path and node.is_border)
    yield Scope(path, str(getattr(parent, "__name__", type(parent).__name__)), border)
    for name, provider in container.providers.items():
        inner = _inner_container(provider)
        if inner is not None:
            yield from _scopes(inner, f"{path}.{name}" if path else name, nodes)


def _scope_class(provider: Any) -> Any:
    """The container class that a factory of scopes makes, else None."""
    made = None if _is_dependency(provider) else getattr(provider, "provides", None)
    return made if isinstance(made, type) and hasattr(made, "providers") else None


def _inner_container(provider: Any) -> Any:
    if _is_getter(provider) or _is_dependency(provider):
        return None
    nested = getattr(provider, "container", None)
    return nested if nested is not None else _scope_class(provider)


def _is_provider(value: object) -> bool:
    return not isinstance(value, type) and hasattr(value, "provided") and hasattr(value, "related")


def _is_dependency(provider: Any) -> bool:
    return type(provider).__name__ == _DEPENDENCY


def _is_getter(provider: Any) -> bool:
    return type(provider).__name__ in _GETTERS


def _is_delegate(provider: Any) -> bool:
    return type(provider).__name__ == "Delegate"


def _inputs(provider: Any) -> Iterator[tuple[str, Any, bool]]:
    """(argument, provider, is it handed on uncalled) for each thing that goes in."""
    if _is_getter(provider):
        yield "", provider.provides, False
        return
    if _is_dependency(provider):
        # How an outer container wires the border of a nested one.
        if provider.overridden:
            yield "", provider.last_overriding, False
        return
    if hasattr(provider, "container"):
        return  # its providers are nodes of their own
    for value in getattr(provider, "args", None) or ():
        yield "", value, _is_delegate(value)
    for name, value in (getattr(provider, "kwargs", None) or {}).items():
        yield name, value, _is_delegate(value)
    if hasattr(provider, "selector"):
        yield "", provider.selector, False
        for name, value in provider.providers.items():
            yield name, value, False
    made = getattr(provider, "provides", None)
    if _is_provider(made):
        yield "", made, _is_delegate(provider)


def _named(provider: Any, node_of: dict[int, str], is_late: bool) -> Iterator[tuple[str, bool]]:
    """The nearest nodes behind `provider`: getters and inline factories are looked through."""
    if not _is_provider(provider):
        return
    if id(provider) in node_of:
        yield node_of[id(provider)], is_late
        return
    for _, value, late in _inputs(provider):
        yield from _named(value, node_of, is_late or late)
