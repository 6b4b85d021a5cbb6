"""Nobody writes onto a configuration record: not here, not with a trick."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from app.config.server_args import ServerArgs
from tests.architecture.sources import app_files, dotted, name_of, tree_of

# Names under which records are known in this code base, as a whole name or as its last part.
RECORD_NAMES = frozenset(
    {"server_args", "target_config", "draft_config", "record", "resolved", "target_args", "base"}
)
FIELDS = frozenset(ServerArgs.model_fields)
RECORD_TYPES = frozenset({"ServerArgs", "Self"})
# The one place that makes records; it writes private attributes of a record it has just made.
MAKER = "app/config/server_args.py"
WRITING_CALLS = frozenset({"setattr", "delattr", "object.__setattr__", "object.__delattr__"})


class RecordWrites(ast.NodeVisitor):
    """Collects writes onto names that hold a record by their name or by their annotation."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._annotated: set[str] = set()

    def visit_arg(self, node: ast.arg) -> None:
        self._remember(node.arg, node.annotation)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._remember(node.target.id, node.annotation)
        self._check_target(node.target)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._check_target(target)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._check_target(node.target)
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            self._check_target(target)

    def visit_Call(self, node: ast.Call) -> None:
        name = dotted(node.func)
        if (
            name in WRITING_CALLS
            and node.args
            and (name.startswith("object.") or self._is_record(node.args[0]))
        ):
            self._report(node, f"{name}(...)")
        if isinstance(node.func, ast.Attribute):
            keywords = {keyword.arg for keyword in node.keywords}
            if node.func.attr in ("model_copy", "copy") and "update" in keywords:
                self._report(node, f"{node.func.attr}(update=...) does not validate")
            if node.func.attr in ("update", "__setitem__", "pop", "setdefault"):
                owner = node.func.value
                if isinstance(owner, ast.Attribute) and owner.attr == "__dict__":
                    self._report(node, "write into __dict__")
            if node.func.attr in ("__setattr__", "__delattr__") and not name.startswith("object."):
                self._report(node, f"{node.func.attr}(...)")
        self.generic_visit(node)

    def _remember(self, name: str, annotation: ast.expr | None) -> None:
        if annotation is not None and any(
            isinstance(part, ast.Name) and part.id in RECORD_TYPES for part in ast.walk(annotation)
        ):
            self._annotated.add(name)

    def _check_target(self, target: ast.expr) -> None:
        for part in ast.walk(target):
            if isinstance(part, ast.Subscript) and not isinstance(part.ctx, ast.Load):
                owner, key = part.value, part.slice
                # A module's own tables live there too: only a known other name is let pass.
                is_other = isinstance(key, ast.Constant) and key.value not in FIELDS
                if isinstance(owner, ast.Attribute) and owner.attr == "__dict__" and not is_other:
                    self._report(part, "write into __dict__")
            if not isinstance(part, ast.Attribute) or isinstance(part.ctx, ast.Load):
                continue
            if self._is_record(part.value):
                self._report(part, f"{dotted(part)} = ...")

    def _is_record(self, node: ast.expr) -> bool:
        name = dotted(node)
        return bool(name) and (name.rpartition(".")[2] in RECORD_NAMES or name in self._annotated)

    def _report(self, node: ast.expr | ast.stmt, what: str) -> None:
        self.found.append(f"line {node.lineno}: {what}")


def record_writes(tree: ast.Module) -> list[str]:
    visitor = RecordWrites()
    # Annotations first: a function may stand above the class whose name it uses.
    visitor.visit(tree)
    visitor.found.clear()
    visitor.visit(tree)
    return list(dict.fromkeys(visitor.found))


def offences() -> Iterator[str]:
    for path in app_files():
        if name_of(path) != MAKER:
            yield from (f"{name_of(path)}: {write}" for write in record_writes(tree_of(path)))


def test_no_file_writes_onto_a_record() -> None:
    assert list(offences()) == []


def test_the_maker_of_records_writes_only_private_attributes() -> None:
    path = next(path for path in app_files() if name_of(path) == MAKER)
    written = [
        node.attr
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del)
    ]
    assert written
    assert [name for name in written if not name.startswith("_")] == []
    calls = [dotted(n.func) for n in ast.walk(tree_of(path)) if isinstance(n, ast.Call)]
    assert not WRITING_CALLS & set(calls)
    assert "model_copy" not in {name.rpartition(".")[2] for name in calls}


@pytest.mark.parametrize(
    "snippet",
    [
        "server_args.load_format = 'dummy'",
        "self.server_args.context_length = 5",
        "self.server_args.context_length += 5",
        "runtime_context.resolved.dtype = 'float32'",
        "del server_args.dtype",
        "a, server_args.dtype = 1, 2",
        "def f(args: ServerArgs):\n    args.dtype = 'float32'",
        "def f(args: ServerArgs | None):\n    args.dtype = 'float32'",
        "x: ServerArgs = make()\nx.dtype = 'float32'",
        "def f(args: 'int', other: ServerArgs):\n    setattr(other, 'dtype', 1)",
        "object.__setattr__(anything, 'dtype', 1)",
        "anything.model_copy(update={'dtype': 1})",
        "anything.__dict__['dtype'] = 1",
        "anything.__dict__[name] = 1",
        "anything.__dict__.update(dtype=1)",
        "anything.__setattr__('dtype', 1)",
    ],
)
def test_the_guard_sees_a_write(snippet: str) -> None:
    assert record_writes(ast.parse(snippet)) != []


@pytest.mark.parametrize(
    "snippet",
    [
        "value = server_args.dtype",
        "self.server_args = server_args",
        "self.dtype = server_args.dtype",
        "sizes[server_args.page_size] = 1",
        "setattr(layer, 'weight', tensor)",
        "module.__dict__['_modules'] = {}",
        "copied = record.derive('rule', {'dtype': 'float32'})",
    ],
)
def test_the_guard_lets_reads_pass(snippet: str) -> None:
    assert record_writes(ast.parse(snippet)) == []


def test_a_record_refuses_writes_at_run_time() -> None:
    record = ServerArgs(model_path="m")
    with pytest.raises(ValueError, match="frozen"):
        record.dtype = "float32"
    assert record.dtype == "auto"
