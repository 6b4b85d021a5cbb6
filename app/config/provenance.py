"""Where a value of a record came from: the names of the sources."""

from __future__ import annotations

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


def is_rule(source: str) -> bool:
    """Whether a resolution rule decided the value, so that it may be decided again."""
    return source.startswith("rule ")
