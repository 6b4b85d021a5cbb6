"""A provider graph as SVG: one band for each scope, inputs to the left of what they go into."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from app.provider_graph import Edge, Node, ProviderGraph, Scope

BOX_WIDTH, BOX_HEIGHT = 172, 40
COLUMN_GAP, ROW_GAP = 56, 14
MARGIN, TITLE = 24, 30

STYLE = """
  text { font: 13px sans-serif; fill: #1b1f24 }
  .kind { font-size: 10px; fill: #57606a }
  .scope { fill: #f6f8fa; stroke: #8c959f }
  .draft { fill: #fff8e6; stroke: #bf8700; stroke-width: 2; stroke-dasharray: 7 4 }
  .node { fill: #ffffff; stroke: #57606a }
  .border { stroke: #bf8700; stroke-width: 3 }
  .edge { fill: none; stroke: #57606a; opacity: 0.75 }
  .late { stroke-dasharray: 4 3 }
"""


@dataclass(frozen=True, slots=True)
class Band:
    """The place of one scope."""

    scope: Scope
    top: int
    height: int


def graph_as_svg(graph: ProviderGraph) -> str:
    """A self-contained SVG document."""
    columns = _columns(graph)
    bands, corners = _place(graph, columns)
    width = 2 * MARGIN + (max(columns.values(), default=0) + 1) * (BOX_WIDTH + COLUMN_GAP)
    height = (bands[-1].top + bands[-1].height if bands else 0) + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}">',
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#57606a"/></marker></defs>',
        *(_draw_band(band, width) for band in bands),
        *(_draw_edge(edge, corners) for edge in graph.edges),
        *(_draw_node(node, *corners[node.id]) for node in graph.nodes),
        "</svg>",
    ]
    return "\n".join(parts)


def _columns(graph: ProviderGraph) -> dict[str, int]:
    """Node -> the length of the longest way into it; a late input counts like any other."""
    columns = {node.id: 0 for node in graph.nodes}
    # Each round settles at least one more column; a cycle cannot outlast the node count.
    for _ in graph.nodes:
        moved = {e.target: columns[e.source] + 1 for e in graph.edges}
        for edge in graph.edges:
            moved[edge.target] = max(moved[edge.target], columns[edge.source] + 1)
        if all(columns[target] == column for target, column in moved.items()):
            break
        columns.update(moved)
    return columns


def _place(
    graph: ProviderGraph, columns: dict[str, int]
) -> tuple[list[Band], dict[str, tuple[int, int]]]:
    """The bands from top to bottom, and the upper left corner of every node."""
    bands: list[Band] = []
    corners: dict[str, tuple[int, int]] = {}
    top = MARGIN
    for scope in graph.scopes:
        filled: dict[int, int] = {}
        for node in graph.nodes_of(scope.path):
            column = columns[node.id]
            row = filled.get(column, 0)
            filled[column] = row + 1
            x = MARGIN + COLUMN_GAP // 2 + column * (BOX_WIDTH + COLUMN_GAP)
            corners[node.id] = (x, top + TITLE + row * (BOX_HEIGHT + ROW_GAP))
        rows = max(filled.values(), default=1)
        height = TITLE + rows * (BOX_HEIGHT + ROW_GAP)
        bands.append(Band(scope, top, height))
        top += height + ROW_GAP
    return bands, corners


def _draw_band(band: Band, width: int) -> str:
    scope = band.scope
    kind = "draft" if scope.path.startswith("draft") else "scope"
    title = f"{scope.path}: {scope.name}" if scope.path else scope.name
    return (
        f'<rect class="{kind}" x="{MARGIN // 2}" y="{band.top}" width="{width - MARGIN}" '
        f'height="{band.height}" rx="8"/>'
        f'<text x="{MARGIN}" y="{band.top + 19}" font-weight="bold">{escape(title)}</text>'
    )


def _draw_node(node: Node, x: int, y: int) -> str:
    kind = "node border" if node.is_border and node.scope else "node"
    subtitle = f"{node.kind} {node.makes}".strip()
    if len(subtitle) > 30:
        subtitle = subtitle[:29] + "…"
    return (
        f'<rect class="{kind}" x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="5"/>'
        f'<text x="{x + 10}" y="{y + 17}">{escape(node.name)}</text>'
        f'<text class="kind" x="{x + 10}" y="{y + 32}">{escape(subtitle)}</text>'
    )


def _draw_edge(edge: Edge, corners: dict[str, tuple[int, int]]) -> str:
    (x0, y0), (x1, y1) = corners[edge.source], corners[edge.target]
    x0, y0, y1 = x0 + BOX_WIDTH, y0 + BOX_HEIGHT // 2, y1 + BOX_HEIGHT // 2
    bend = max(40, (x1 - x0) // 2)
    kind = "edge late" if edge.is_late else "edge"
    return (
        f'<path class="{kind}" marker-end="url(#tip)" '
        f'd="M{x0} {y0}C{x0 + bend} {y0} {x1 - bend} {y1} {x1} {y1}"/>'
    )
