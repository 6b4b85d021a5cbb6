"""Where a value of a record came from: the names of the sources."""

from __future__ import annotations

from collections.abc import Mapping

DEFAULT_SOURCE = "default"
# Values given to `ServerArgs(...)` in Python.
ARGUMENT_SOURCE = "argument"
# Call-time overrides of a draft.
DRAFT_OVERRIDE_SOURCE = "draft override"


def environment_source(variable: str) -> str:
    return f"env {variable}"


def flag_source(field: str) -> str:
    return f"flag --{field.replace('_', '-')}"


def set_source(field: str) -> str:
    return f"--set {field}"


def rule_source(name: str) -> str:
    return f"rule {name}"


def draft_copy_source(reason: str) -> str:
    return f"draft copy: {reason}"


def user_field(sources: Mapping[str, str], field: str) -> str:
    """What the user calls `field`: a draft's copy has values from fields of other names."""
    reason = sources[field].removeprefix("draft copy: ")
    return reason if reason.startswith("speculative_draft_") else field


def is_rule(source: str) -> bool:
    """Whether a resolution rule decided the value, so that it may be decided again."""
    return source.startswith("rule ")
