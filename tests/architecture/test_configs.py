"""Every shipped configuration loads, explains itself, and differs where it says."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from app.cli import cli
from app.config.server_args import ServerArgs
from app.config.yaml_io import EXTENDS, load_server_args
from tests.architecture.sources import ROOT

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
DIFFERS = re.compile(r"^# differs: \[([a-z_, ]*)\]$", re.MULTILINE)


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def differs_written_in(path: Path) -> list[str]:
    found = DIFFERS.findall(path.read_text("utf-8"))
    assert len(found) == 1, f"{path.name} needs one line `# differs: [field, ...]`"
    return [field for field in found[0].replace(" ", "").split(",") if field]


@pytest.mark.parametrize("path", CONFIGS, ids=names(CONFIGS))
def test_it_loads(path: Path) -> None:
    assert load_server_args(path, {}, {}, ()).model_path


@pytest.mark.parametrize("path", CONFIGS, ids=names(CONFIGS))
def test_every_key_has_a_comment_with_its_default(path: Path) -> None:
    lines = path.read_text("utf-8").splitlines()
    keys = {i: line.split(":")[0] for i, line in enumerate(lines) if re.match(r"[a-z_]+:", line)}
    assert set(keys.values()) == set(yaml.safe_load(path.read_text("utf-8")))
    for index, key in keys.items():
        comment = []
        while index > 0 and lines[index - 1].startswith("#"):
            index -= 1
            comment.insert(0, lines[index])
        text = " ".join(comment)
        assert comment, f"{path.name}: {key} has no comment"
        assert re.search(r"[Dd]efault|Required", text), f"{path.name}: {key}: no default"


@pytest.mark.parametrize("path", CONFIGS, ids=names(CONFIGS))
def test_the_draft_differs_where_the_file_says(path: Path) -> None:
    outcome = CliRunner().invoke(cli, ["config", "explain", "--config", str(path), "--json"])
    assert outcome.exit_code == 0, outcome.stderr
    assert sorted(json.loads(outcome.stdout)["differs"]) == sorted(differs_written_in(path))


def test_every_field_has_a_description() -> None:
    assert [n for n, field in ServerArgs.model_fields.items() if not field.description] == []


def test_extends_is_no_field() -> None:
    assert EXTENDS not in ServerArgs.model_fields


def test_the_configuration_page_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("page", ROOT / "docs/make_config_reference.py")
    assert spec is not None
    assert spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    hint = "run .venv/bin/python docs/make_config_reference.py"
    assert page.TARGET.read_text("utf-8") == page.render(), hint
    for field in ServerArgs.model_fields:
        assert f"`{field}`" in page.render()
