"""No module keeps mutable state: two engines in one process must not see each other."""

from __future__ import annotations

import ast

import pytest

from tests.architecture.sources import app_files, dotted, name_of, tree_of

MUTABLE_LITERALS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
MUTABLE_MAKERS = frozenset(
    {
        "list",
        "dict",
        "set",
        "bytearray",
        "defaultdict",
        "deque",
        "Counter",
        "OrderedDict",
        "WeakKeyDictionary",
        "WeakValueDictionary",
        "SimpleNamespace",
        "count",
        "cycle",
        "Lock",
        "RLock",
        "local",
        "Generator",
    }
)
CACHES = frozenset({"cache", "lru_cache"})


def module_state(tree: ast.Module) -> list[str]:
    """Mutable values at module or class level, caches of functions, and `global` statements."""
    found = [
        f"line {node.lineno}: global {', '.join(node.names)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Global)
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(
            dotted(d.func if isinstance(d, ast.Call) else d).rpartition(".")[2] in CACHES
            for d in node.decorator_list
        ):
            found.append(f"line {node.lineno}: cache of {node.name}")
    bodies = [tree.body, *(n.body for n in ast.walk(tree) if isinstance(n, ast.ClassDef))]
    for statement in (statement for body in bodies for statement in body):
        if isinstance(statement, ast.Assign | ast.AnnAssign) and _is_mutable(statement.value):
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            found.append(f"line {statement.lineno}: {ast.unparse(target)}")
    return found


def _is_mutable(value: ast.expr | None) -> bool:
    if isinstance(value, MUTABLE_LITERALS):
        return True
    if not isinstance(value, ast.Call):
        return False
    return dotted(value.func).rpartition(".")[2] in MUTABLE_MAKERS


# An export list is read by the import system alone.
EXEMPT = ("__all__",)


def test_no_module_keeps_mutable_state() -> None:
    found = {name_of(path): module_state(tree_of(path)) for path in app_files()}
    offences = {
        name: [place for place in places if place.rpartition(": ")[2] not in EXEMPT]
        for name, places in found.items()
    }
    assert {name: places for name, places in offences.items() if places} == {}


@pytest.mark.parametrize(
    "snippet",
    [
        "registry = {}",
        "seen: set[int] = set()",
        "items = [1, 2]",
        "table = collections.defaultdict(list)",
        "squares = {i: i * i for i in range(3)}",
        "class A:\n    shared = []",
        "def f():\n    global current\n    current = 1",
        "@functools.lru_cache(maxsize=None)\ndef f(): return 1",
        "@cache\ndef f(): return 1",
        "_ids = itertools.count()",
    ],
)
def test_the_guard_sees_state(snippet: str) -> None:
    assert module_state(ast.parse(snippet)) != []


@pytest.mark.parametrize(
    "snippet",
    [
        "NAMES = ('a', 'b')",
        "TABLE = MappingProxyType({'a': 1})",
        "KINDS = frozenset({'a'})",
        "def f():\n    items = []\n    return items",
        "class A:\n    def f(self):\n        self.items = []",
    ],
)
def test_the_guard_lets_constants_pass(snippet: str) -> None:
    assert module_state(ast.parse(snippet)) == []
