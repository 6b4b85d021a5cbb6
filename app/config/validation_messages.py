"""One line for each fault that pydantic finds in a record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from app.config.names import unknown_name_message
from app.config.provenance import (
    ARGUMENT_SOURCE,
    DEFAULT_SOURCE,
    environment_source,
    flag_source,
)


def field_error(field: str, value: object, source: str, problem: str) -> str:
    """`page_size = 3 (configs/a.yaml): must be a power of two, at least 1`."""
    origin = "" if source in (DEFAULT_SOURCE, ARGUMENT_SOURCE) else f" ({source})"
    return f"{field} = {value!r}{origin}: {problem}"


def refuse_boolean(value: object, field: FieldInfo) -> object:
    """`value`, unless it is true or false and `field` holds no switch.

    pydantic reads true as 1: a misplaced switch would become a size.
    """
    items = (value, *value) if isinstance(value, list | tuple) else (value,)
    if any(isinstance(item, bool) for item in items) and "bool" not in str(field.annotation):
        raise ValueError("must not be true or false")
    return value


def _describe(error: ErrorDetails, sources: Mapping[str, str], known: Iterable[str]) -> str:
    field = str(error["loc"][0]) if error["loc"] else "record"
    source = sources.get(field, ARGUMENT_SOURCE)
    if error["type"] == "extra_forbidden":
        origin = "" if source == ARGUMENT_SOURCE else f"{source}: "
        return origin + unknown_name_message("field", field, known)
    if error["type"] == "missing":
        return (
            f"{field} is required: set it in the configuration file, by {flag_source(field)[5:]} "
            f"or by {environment_source(f'DRAFTSCOPE_{field.upper()}')[4:]}"
        )
    problem = error["msg"].removeprefix("Value error, ")
    return field_error(field, error["input"], source, problem[:1].lower() + problem[1:])


def one_line(error: ValidationError, sources: Mapping[str, str], known: Iterable[str]) -> str:
    """Every fault of `error`, naming field, value, source and what would be right."""
    names = tuple(known)
    # A fault inside a union is reported once a member; the first one says enough.
    by_field: dict[str, str] = {}
    for details in error.errors(include_url=False, include_context=False):
        by_field.setdefault(str(details["loc"][:1]), _describe(details, sources, names))
    return "; ".join(by_field.values())
