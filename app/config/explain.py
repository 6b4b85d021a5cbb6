"""Shows records: each value with its source, target and draft side by side."""

from __future__ import annotations

from app.config.frozen_mapping import thaw
from app.config.server_args import ServerArgs


def show(server_args: ServerArgs) -> dict[str, object]:
    """field -> value as JSON has it."""
    return {field: thaw(getattr(server_args, field)) for field in ServerArgs.model_fields}


def explain(target: ServerArgs, draft: ServerArgs | None) -> dict[str, object]:
    """`{"target": {field: {"value", "source"}}, "draft": ..., "differs": [field, ...]}`.

    Without a draft `draft` is None and `differs` empty. All of it can be written as JSON.
    """
    return {
        "target": _with_sources(target),
        "draft": None if draft is None else _with_sources(draft),
        "differs": [] if draft is None else differing_fields(target, draft),
    }


def differing_fields(target: ServerArgs, draft: ServerArgs) -> list[str]:
    """Fields whose values differ, in the record's order."""
    return [f for f in ServerArgs.model_fields if getattr(target, f) != getattr(draft, f)]


def server_args_schema() -> dict[str, object]:
    """The JSON schema of a configuration file, for editors and for generated flags."""
    schema = ServerArgs.model_json_schema()
    schema["title"] = "draftscope configuration"
    schema["properties"] = {
        "extends": {"type": "string", "description": "A file whose values this one overrides."},
        **schema["properties"],
    }
    return schema


def _with_sources(record: ServerArgs) -> dict[str, dict[str, object]]:
    sources = record.sources
    return {f: {"value": v, "source": sources[f]} for f, v in show(record).items()}
