"""Writes docs/config.md from the schema of `ServerArgs`. A test compares the file with it.

Run: .venv/bin/python docs/make_config_reference.py
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.config.draft_args import ENGINE_WIDE_FIELDS
from app.config.model_fields import ModelFields
from app.config.runtime_fields import RuntimeFields
from app.config.server_args import ServerArgs
from app.config.speculative_fields import DraftFields, NgramFields, SpeculationFields

TARGET = Path(__file__).with_name("config.md")

GROUPS = (ModelFields, RuntimeFields, SpeculationFields, DraftFields, NgramFields)

HEADER = """\
# Configuration

One frozen record, `ServerArgs`, describes a run. Its fields are flat and spelled as SGLang spells
them. This page is made from the record's schema by `docs/make_config_reference.py`.

## Where a value comes from

Lowest first; a higher source replaces the whole value of a field, lists and mappings included.

1. the default
2. the YAML file of `--config`, and below it the file it names with `extends:`
3. the environment: `DRAFTSCOPE_<FIELD>`, for example `DRAFTSCOPE_PAGE_SIZE=16`
4. flags: `--page-size 16`
5. `--set page_size=16`
6. resolution rules, for fields that nobody set
7. what loading the target decides, because it depends on the machine
8. for a draft only: what the draft has of its own, then call-time overrides

`draftscope config explain` shows each value with its source, target and draft side by side.
`draftscope config schema` prints the JSON schema for editors. An unknown key is an error that names
the nearest known one. `DRAFTSCOPE_CACHE` is no field: it is the folder of pulled models.

## Fields

`draft: engine's` marks values that belong to the whole engine; a draft cannot have its own.
"""


def render() -> str:
    properties = ServerArgs.model_json_schema()["properties"]
    parts = [HEADER]
    for group in GROUPS:
        parts.append(f"### {(group.__doc__ or '').strip().rstrip('.')}\n")
        parts.append("| field | values | default | meaning |\n|---|---|---|---|")
        parts += [_row(name, properties[name]) for name in group.model_fields]
        parts.append("")
    return "\n".join(parts)


def _row(name: str, entry: Mapping[str, Any]) -> str:
    meaning = entry["description"].replace("|", "\\|")
    if name in ENGINE_WIDE_FIELDS:
        meaning += " *draft: engine's*"
    return f"| `{name}` | {_values(entry)} | {_default(name, entry)} | {meaning} |"


def _values(entry: Mapping[str, Any]) -> str:
    kinds = [kind for kind in entry.get("anyOf", [entry]) if kind.get("type") != "null"]
    if "enum" in kinds[0]:
        return ", ".join(f"`{value}`" for value in kinds[0]["enum"])
    return " or ".join(dict.fromkeys(kind["type"] for kind in kinds))


def _default(name: str, entry: Mapping[str, Any]) -> str:
    if ServerArgs.model_fields[name].is_required():
        return "required"
    default = entry.get("default")
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return "unset" if default in (None, [], {}) else f"`{default}`"


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
