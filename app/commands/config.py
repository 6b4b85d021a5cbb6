"""`draftscope config`: the resolved records and where each value came from."""

from __future__ import annotations

from typing import Any

import click

from app.commands.engine_options import ConfigInputs, ConfiguredCommand
from app.commands.failures import ReportingGroup
from app.commands.output import print_json, print_table, print_text
from app.config.provenance import DEFAULT_SOURCE

UNSET = "-"


@click.group(cls=ReportingGroup)
def config() -> None:
    """Show what is configured, and why."""


@config.command(cls=ConfiguredCommand)
def show(inputs: ConfigInputs) -> None:
    """The resolved records of the target and of the draft."""
    explained = _explain(inputs)
    values = {
        side: {field: entry["value"] for field, entry in explained[side].items()}
        for side in ("target", "draft")
        if explained.get(side)
    }
    if inputs.is_json:
        print_json(values)
        return
    import yaml

    print_text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), is_line=False)


@config.command(cls=ConfiguredCommand)
@click.option("--all", "is_complete", is_flag=True, help="Also fields that nobody set.")
def explain(inputs: ConfigInputs, is_complete: bool) -> None:
    """Values with their sources, target and draft side by side; * marks what differs."""
    explained = _explain(inputs)
    if inputs.is_json:
        print_json(explained)
        return
    target, draft = explained["target"], explained.get("draft") or {}
    differs = set(explained["differs"])
    header = ["", "field", "target", "source", *(["draft", "source"] if draft else [])]
    print_table(
        header,
        [
            [
                "*" if field in differs else "",
                field,
                *_cells(target[field]),
                *(_cells(draft[field]) if draft else []),
            ]
            for field in target
            if is_complete or not _is_default(target, draft, field)
        ],
    )


@config.command(cls=ConfiguredCommand)
def schema(inputs: ConfigInputs) -> None:
    """The JSON schema of a configuration file, for editors."""
    if inputs.is_given:
        inputs.server_args()
    from app.config.explain import server_args_schema

    print_json(server_args_schema(), indent=None if inputs.is_json else 2)


def _explain(inputs: ConfigInputs) -> dict[str, Any]:
    server_args = inputs.server_args()
    from app.engine import explain_config

    return explain_config(server_args)


def _is_default(target: dict[str, Any], draft: dict[str, Any], field: str) -> bool:
    return all(record[field]["source"] == DEFAULT_SOURCE for record in (target, draft) if record)


def _cells(entry: dict[str, Any]) -> tuple[str, str]:
    value = entry["value"]
    return (UNSET if value is None else str(value), str(entry["source"]))
