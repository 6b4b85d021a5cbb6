"""Reads JSON that others wrote: what is wrong with it becomes one line that names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# Far beyond any real file, and far below what recursive readers of the values can bear.
MAX_DEPTH = 64


def parse_json(text: str) -> Any:
    """The value of `text`. Raises ValueError with the reason alone."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels") from None
    if is_deeper_than(value, MAX_DEPTH):
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
    return value


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises ValueError naming the file, but FileNotFoundError as is."""
    try:
        values = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    # ValueError: also bytes that are no UTF-8, and numbers with thousands of digits.
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path}: must hold a JSON object, got {type(values).__name__}")
    return values


def is_deeper_than(value: object, limit: int) -> bool:
    """Whether mappings and lists are nested more than `limit` deep in `value`."""
    level = [value]
    for _ in range(limit + 1):
        level = [
            item
            for container in level
            for item in (
                container.values()
                if isinstance(container, dict)
                else container
                if isinstance(container, list | tuple)
                else ()
            )
        ]
        if not level:
            return False
    return True
