"""Types of `ServerArgs` fields that several groups of fields share."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
)

from app.config.frozen_mapping import FrozenMapping, parse_mapping, thaw
from app.config.load_formats import REFUSED_LOAD_FORMATS, SUPPORTED_LOAD_FORMATS
from app.config.names import nearest_name

DType = Literal["auto", "float32", "bfloat16", "float16"]
Quantization = Literal["modelopt_fp4", "unquant"]
AttentionBackend = Literal["torch_paged", "torch_dense"]

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_UNITS = ("", "k", "m", "g", "t")


def _parse_size(value: object) -> object:
    """Bytes from a number or a size such as "512MiB" (2**20) or "1GB" (10**9)."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError('must be a number of bytes or a size such as "512MiB" or "1GiB"')
    number, unit, binary = match.groups()
    return int(Decimal(number) * (1024 if binary else 1000) ** _UNITS.index(unit.lower()))


def _check_power_of_two(value: int) -> int:
    if value < 1 or value & (value - 1):
        raise ValueError("must be a power of two, at least 1")
    return value


def _check_chunk_size(value: int) -> int:
    if value < 1 and value != -1:
        raise ValueError("must be at least 1, or -1 for unchunked prefill")
    return value


def _check_load_format(value: str) -> str:
    if value in SUPPORTED_LOAD_FORMATS:
        return value
    choices = ", ".join(SUPPORTED_LOAD_FORMATS)
    if value in REFUSED_LOAD_FORMATS:
        raise ValueError(
            f"is not supported by this build: {REFUSED_LOAD_FORMATS[value]} (choices: {choices})"
        )
    nearest = nearest_name(value, SUPPORTED_LOAD_FORMATS)
    hint = f"; did you mean {nearest!r}?" if nearest else ""
    raise ValueError(f"must be one of {choices}{hint}")


ByteSize = Annotated[
    int,
    Field(gt=0, lt=2**63),
    BeforeValidator(_parse_size),
    WithJsonSchema({"anyOf": [{"type": "integer", "exclusiveMinimum": 0}, {"type": "string"}]}),
]
PowerOfTwo = Annotated[int, AfterValidator(_check_power_of_two)]
ChunkSize = Annotated[int, AfterValidator(_check_chunk_size)]
LoadFormat = Annotated[
    str,
    AfterValidator(_check_load_format),
    WithJsonSchema({"enum": list(SUPPORTED_LOAD_FORMATS), "type": "string"}),
]
Pairs = Annotated[
    FrozenMapping,
    PlainValidator(parse_mapping),
    PlainSerializer(thaw),
    WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "string"}], "default": {}}),
]
