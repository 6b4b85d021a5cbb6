"""The configuration record: frozen, validated, and each value knows its source."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError, field_validator

from app.config.frozen_mapping import freeze
from app.config.model_fields import ModelFields
from app.config.names import unknown_name_message
from app.config.provenance import ARGUMENT_SOURCE, DEFAULT_SOURCE
from app.config.runtime_fields import RuntimeFields
from app.config.speculative_fields import DraftFields, NgramFields, SpeculationFields
from app.config.validation_messages import one_line, refuse_boolean


class ServerArgs(NgramFields, DraftFields, SpeculationFields, RuntimeFields, ModelFields):
    """One model's configuration, target's or draft's. Fields are spelled as SGLang spells them.

    A faulty value raises a one-line `ValueError` naming field, value, source and what is right.
    Records are equal when their values are, whatever the sources. Change one with `derive` only.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Pairs and not a dict: records are copied deeply, hashed by value and sent to threads.
    _sources: tuple[tuple[str, str], ...] = PrivateAttr(default=())
    _is_draft_copy: bool = PrivateAttr(default=False)

    if not TYPE_CHECKING:  # type checkers see the fields as keyword arguments

        def __init__(self, **values: Any) -> None:
            _initialise(self, values, dict.fromkeys(values, ARGUMENT_SOURCE))

    @classmethod
    def from_sources(cls, values: Mapping[str, object], sources: Mapping[str, str]) -> Self:
        """A record from merged layers; `sources[field]` says where `values[field]` came from."""
        record = cls.__new__(cls)
        _initialise(record, values, sources)
        return record

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_booleans_as_numbers(cls, value: object, info: Any) -> object:
        return refuse_boolean(value, cls.model_fields[info.field_name])

    @property
    def sources(self) -> Mapping[str, str]:
        """Field -> where its value came from; "default" for a field nobody set."""
        unset = dict.fromkeys(type(self).model_fields, DEFAULT_SOURCE)
        return MappingProxyType(unset | dict(self._sources))

    @property
    def is_draft_copy(self) -> bool:
        """Whether the record describes a draft (made by `draft_server_args_copy`)."""
        return self._is_draft_copy

    def is_set(self, field: str) -> bool:
        """Whether anybody or anything decided the field's value."""
        return self.sources[field] != DEFAULT_SOURCE

    def derive(
        self,
        source: str,
        fields: Mapping[str, object],
        *,
        record_unchanged: bool = False,
        as_draft_copy: bool = False,
    ) -> Self:
        """A validated copy with `fields` replaced; `source` is recorded for each that changed.

        `record_unchanged`: also for those that keep their value, because it was chosen again.
        `as_draft_copy`: the result, and all derived from it, describe a draft.
        Raises ValueError for an unknown field or a faulty value; nothing changes then.
        """
        known = type(self).model_fields
        for field in fields:
            if field not in known:
                raise ValueError(f"{source}: {unknown_name_message('field', field, known)}")
        given = {field: getattr(self, field) for field in known} | dict(fields)
        candidate = self.from_sources(given, dict(self._sources) | dict.fromkeys(fields, source))
        recorded = [
            field
            for field in fields
            if record_unchanged or getattr(candidate, field) != getattr(self, field)
        ]
        candidate._sources = _as_pairs(dict(self._sources) | dict.fromkeys(recorded, source))
        candidate._is_draft_copy = self._is_draft_copy or as_draft_copy
        return candidate

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ServerArgs) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(freeze(self.__dict__))


def _as_pairs(sources: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(sources.items()))


def _initialise(
    record: ServerArgs, values: Mapping[str, object], sources: Mapping[str, str]
) -> None:
    """Validate `values` into `record`, turning pydantic's report into one line."""
    try:
        BaseModel.__init__(record, **values)
    except ValidationError as error:
        raise ValueError(one_line(error, sources, type(record).model_fields)) from None
    record._sources = _as_pairs(sources)
