"""Reads of the published slot are counted; the count may only fall.

A record is published while a draft is built and at no other time, so every read of the slot is a
place that gives another answer later. Constructor arguments are the better way.
"""

from __future__ import annotations

import ast

from tests.architecture.sources import app_files, dotted, name_of, tree_of

SLOT_OWNERS = ("runtime_context", "_runtime_context", "context")
# Lower it when a read goes away. Never raise it.
ALLOWED_READS = 0


def slot_reads(tree: ast.Module) -> list[int]:
    """Lines that read `<runtime context>.server_args`."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr == "server_args"
        and dotted(node.value).rpartition(".")[2] in SLOT_OWNERS
    ]


def test_reads_of_the_slot_do_not_grow() -> None:
    reads = {name_of(path): slot_reads(tree_of(path)) for path in app_files()}
    found = {name: lines for name, lines in reads.items() if lines}
    count = sum(len(lines) for lines in found.values())
    assert count == ALLOWED_READS, f"{count} reads, {ALLOWED_READS} allowed: {found}"


def test_the_counter_sees_a_read() -> None:
    tree = ast.parse("a = runtime_context.server_args\nb = self._runtime_context.server_args.dtype")
    assert slot_reads(tree) == [1, 2]
    assert slot_reads(ast.parse("a = runtime_context.resolved\nb = self.server_args")) == []
