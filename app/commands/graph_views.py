"""A provider graph as text and as Mermaid."""

from __future__ import annotations

from app.provider_graph import Node, ProviderGraph, Scope

INDENT = "  "


def graph_as_text(graph: ProviderGraph) -> str:
    """One provider a line, below its scope, with what goes into it; `~` marks a late input."""
    lines: list[str] = []
    for scope in graph.scopes:
        lines.append(_heading(scope))
        nodes = graph.nodes_of(scope.path)
        width = max((len(node.name) for node in nodes), default=0)
        lines += [f"{INDENT}{_line(graph, node, width)}".rstrip() for node in nodes]
        lines.append("")
    return "\n".join(lines).rstrip()


def _heading(scope: Scope) -> str:
    if not scope.path:
        return scope.name
    entries = ", ".join(node_id.rpartition(".")[2] for node_id in scope.border)
    return f"{scope.path}: {scope.name}  [border: {entries}]"


def _line(graph: ProviderGraph, node: Node, width: int) -> str:
    made = f"{node.kind} {node.makes}".strip()
    inputs = [("~" if e.is_late else "") + e.source for e in graph.inputs_of(node.id)]
    return f"{node.name:<{width}}  {made}" + (f"  <- {', '.join(inputs)}" if inputs else "")


def graph_as_mermaid(graph: ProviderGraph) -> str:
    """A flowchart; nested scopes are subgraphs and their borders are drawn thick."""
    lines = ["flowchart LR"]
    for scope in graph.scopes:
        prefix = INDENT
        if scope.path:
            lines.append(f'{INDENT}subgraph {_key(scope.path)}_scope["{scope.path}: {scope.name}"]')
            prefix = INDENT * 2
        for node in graph.nodes_of(scope.path):
            label = f"{node.name}<br/><small>{f'{node.kind} {node.makes}'.strip()}</small>"
            border = ":::border" if node.is_border and scope.path else ""
            lines.append(f'{prefix}{_key(node.id)}["{label}"]{border}')
        if scope.path:
            lines.append(f"{INDENT}end")
    for edge in graph.edges:
        arrow = "-. provider .->" if edge.is_late else "-->"
        lines.append(f"{INDENT}{_key(edge.source)} {arrow} {_key(edge.target)}")
    lines.append(f"{INDENT}classDef border stroke-width:3px")
    return "\n".join(lines)


def _key(node_id: str) -> str:
    return node_id.replace(".", "__")
