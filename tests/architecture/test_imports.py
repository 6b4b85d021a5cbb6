"""Which file may import which library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import APP, app_files, imported_modules, name_of, tree_of


def importers_of(library: str) -> list[str]:
    return [
        name_of(path)
        for path in app_files()
        if any(module.split(".")[0] == library for module in imported_modules(tree_of(path)))
    ]


def test_only_the_composition_root_imports_dependency_injector() -> None:
    assert importers_of("dependency_injector") == ["app/containers.py"]


def test_only_the_command_line_imports_click() -> None:
    outside = [
        name
        for name in importers_of("click")
        if name != "app/cli.py" and not name.startswith("app/commands/")
    ]
    assert outside == []


def test_nothing_uses_the_testing_package() -> None:
    users = [
        name_of(path)
        for path in app_files()
        if APP / "testing" not in path.parents
        and any(module.startswith("app.testing") for module in imported_modules(tree_of(path)))
    ]
    assert users == []


@pytest.mark.parametrize("heavy", ["torch", "transformers", "pydantic", "dependency_injector"])
def test_the_command_line_starts_without_heavy_imports(heavy: str, root: Path) -> None:
    code = f"import sys, app.cli; sys.exit({heavy!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=False)
    assert done.returncode == 0, f"importing app.cli imports {heavy}"


def test_the_package_itself_starts_without_torch(root: Path) -> None:
    code = "import sys, app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_public_names_exist() -> None:
    import app

    assert {name for name in app.__all__ if getattr(app, name) is None} == set()
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        _ = app.missing  # type: ignore[attr-defined]
