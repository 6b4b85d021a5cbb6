"""The header of a GGUF file: its metadata and where its tensors lie.

Not `gguf.GGUFReader`, which makes several Python objects of each of a vocabulary's tokens: 150 MB
and seconds for a file of 98 MB.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 8
# Metadata value type -> struct format of one little-endian value.
_FORMATS: Mapping[int, str] = MappingProxyType(
    {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
)

Metadata = Mapping[str, int | float | str]


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor: `shape` slowest dimension first; `data [..., bytes of a row]` in the mapped file,
    in blocks of the ggml type `kind`."""

    name: str
    shape: tuple[int, ...]
    kind: int
    data: npt.NDArray[np.uint8]

    @property
    def num_elements(self) -> int:
        return prod(self.shape)


def read_arrays(path: Path, names: Collection[str]) -> Mapping[str, tuple[int | float | str, ...]]:
    """The metadata arrays called `names` that `path` has, such as tokenizer.ggml.tokens.

    Raises ValueError with the reason, without the file's name.
    """
    arrays: dict[str, tuple[int | float | str, ...]] = {}
    with _header_of(path) as (cursor, _, num_pairs, _):
        for _ in _metadata(cursor, num_pairs, wanted=names, arrays=arrays):
            pass
    return arrays


def read_header(path: Path) -> tuple[Metadata, tuple[GGUFTensor, ...]]:
    """Scalar metadata (arrays are skipped) and tensors of `path`; nothing else is read.

    Raises ValueError with the reason, without the file's name.
    """
    with _header_of(path) as (cursor, num_tensors, num_pairs, file):
        metadata = dict(_metadata(cursor, num_pairs))
        entries = [_tensor_entry(cursor) for _ in range(num_tensors)]
    alignment = int(metadata.get("general.alignment", 32))
    start = -(-cursor.position // alignment) * alignment
    return metadata, tuple(_locate(file, start, *entry) for entry in entries)


@contextmanager
def _header_of(path: Path) -> Iterator[tuple[_Cursor, int, int, npt.NDArray[np.uint8]]]:
    """A cursor at the metadata, the numbers of tensors and of metadata pairs, and the file."""
    if path.stat().st_size == 0:
        raise ValueError("it is empty")
    # Copy on write: torch has no read-only tensors, and nobody writes to these.
    file = np.memmap(path, mode="c", dtype=np.uint8)
    cursor = _Cursor(file.data)
    try:
        if cursor.take(4) != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        version, num_tensors, num_pairs = cursor.unpack("IQQ")
        if version not in _VERSIONS:
            raise ValueError(f"version {version} is not one of {_VERSIONS}")
        yield cursor, num_tensors, num_pairs, file
    except struct.error as error:
        raise ValueError("its header is cut short") from error


@dataclass(slots=True)
class _Cursor:
    file: memoryview
    position: int = 0

    def take(self, count: int) -> bytes:
        taken = bytes(self.file[self.position : self.position + count])
        if len(taken) != count:
            raise ValueError("its header is cut short")
        self.position += count
        return taken

    def skip(self, count: int) -> None:
        self.position += count

    def unpack(self, formats: str) -> tuple[int, ...]:
        values = struct.unpack_from(f"<{formats}", self.file, self.position)
        self.position += struct.calcsize(f"<{formats}")
        return values

    def string(self) -> str:
        return self.take(self.unpack("Q")[0]).decode("utf-8")


def _metadata(
    cursor: _Cursor,
    num_pairs: int,
    *,
    wanted: Collection[str] = (),
    arrays: dict[str, tuple[int | float | str, ...]] | None = None,
) -> Iterator[tuple[str, int | float | str]]:
    """Scalar pairs; the `wanted` ones of the arrays go to `arrays`, the others are skipped."""
    for _ in range(num_pairs):
        key, (kind,) = cursor.string(), cursor.unpack("I")
        if kind == _STRING:
            yield key, cursor.string()
        elif kind == _ARRAY and key in wanted and arrays is not None:
            arrays[key] = _read_array(cursor)
        elif kind == _ARRAY:
            _skip_array(cursor)
        else:
            yield key, cursor.unpack(_format(kind))[0]


def _read_array(cursor: _Cursor) -> tuple[int | float | str, ...]:
    kind, count = cursor.unpack("IQ")
    # Each item takes a byte or more: a count beyond the file would fill the memory first.
    if count > len(cursor.file) - cursor.position:
        raise ValueError("its header is cut short")
    if kind == _STRING:
        return tuple(cursor.string() for _ in range(count))
    return cursor.unpack(f"{count}{_format(kind)}")


def _skip_array(cursor: _Cursor) -> None:
    kind, count = cursor.unpack("IQ")
    if kind != _STRING:
        cursor.skip(count * struct.calcsize(f"<{_format(kind)}"))
        return
    for _ in range(count):
        cursor.skip(cursor.unpack("Q")[0])


def _format(kind: int) -> str:
    if kind not in _FORMATS:
        raise ValueError(f"it holds metadata of the unknown type {kind}")
    return _FORMATS[kind]


def _tensor_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """(name, shape, ggml type, offset in the data)."""
    name, (num_dimensions,) = cursor.string(), cursor.unpack("I")
    if num_dimensions > _MAX_DIMENSIONS:
        raise ValueError(f"tensor {name} has {num_dimensions} dimensions")
    # ggml lists the fastest-moving dimension first.
    shape = cursor.unpack(f"{num_dimensions}Q")[::-1]
    kind, offset = cursor.unpack("IQ")
    return name, shape, kind, offset


def _locate(
    file: npt.NDArray[np.uint8],
    start: int,
    name: str,
    shape: tuple[int, ...],
    kind: int,
    offset: int,
) -> GGUFTensor:
    import gguf

    if kind not in {int(known) for known in gguf.GGML_QUANT_SIZES}:
        raise ValueError(f"tensor {name} is of the unknown ggml type {kind}")
    block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
    if not shape or shape[-1] % block:
        raise ValueError(f"tensor {name} of shape {list(shape)} does not fill blocks of {block}")
    byte_shape = (*shape[:-1], shape[-1] // block * block_bytes)
    begin, count = start + offset, prod(byte_shape)
    if begin + count > len(file):
        raise ValueError(f"it is cut short: tensor {name} lies behind its end")
    return GGUFTensor(name, shape, kind, file[begin : begin + count].reshape(byte_shape))
