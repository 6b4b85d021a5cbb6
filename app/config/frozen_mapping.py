"""Mappings that cannot change: nested tuples of pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from app.config.json_file import MAX_DEPTH, is_deeper_than, parse_json


class FrozenMapping(tuple[tuple[str, object], ...]):
    """A mapping as a tuple of `(key, value)` pairs sorted by key; values are frozen too.

    A type of its own, so that `thaw` can tell a mapping from a list of two-element lists.
    """

    __slots__ = ()


def freeze(value: object) -> object:
    """`value` with every mapping and list inside it made immutable and hashable."""
    if isinstance(value, FrozenMapping):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"keys must be strings, got {key!r}")
        return FrozenMapping((key, freeze(value[key])) for key in sorted(value))
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise ValueError(f"values must be plain YAML values, got {type(value).__name__} {value!r}")


def thaw(value: object) -> object:
    """The inverse of `freeze`: new dicts and lists that the caller owns."""
    if isinstance(value, FrozenMapping):
        return {key: thaw(item) for key, item in value}
    if isinstance(value, tuple):
        return [thaw(item) for item in value]
    return value


def thaw_mapping(value: FrozenMapping) -> dict[str, object]:
    """`thaw` for a value known to be a mapping."""
    return cast("dict[str, object]", thaw(value))


def parse_mapping(value: object) -> FrozenMapping:
    """A frozen mapping from a mapping, a JSON object in a string, pairs, or None (empty)."""
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError as error:
            raise ValueError(f"must be a mapping or a JSON object: {error}") from None
    if value is None or value == ():
        return FrozenMapping()
    if isinstance(value, tuple) and all(isinstance(p, tuple) and len(p) == 2 for p in value):
        value = dict(value)
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping or a JSON object")
    if is_deeper_than(value, MAX_DEPTH):
        raise ValueError(f"must not be nested deeper than {MAX_DEPTH} levels")
    frozen = freeze(value)
    assert isinstance(frozen, FrozenMapping)
    return frozen
