"""A numpy copy of a torch checkpoint: one mapped file a tensor, made on the first load."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import filelock
import numpy as np
import torch

from app.loading.checkpoint_files import CheckpointFiles
from app.loading.weight_iterators import Weights, iterate_weights

_INDEX = "weight_names.json"

# tensor name -> (file, dtype)
_Stored = dict[str, tuple[str, str]]

# numpy lacks these types: the bytes are kept as integers of the same width.
_STORED_AS: Mapping[torch.dtype, torch.dtype] = MappingProxyType(
    {
        torch.bfloat16: torch.uint16,
        torch.float8_e4m3fn: torch.uint8,
        torch.float8_e5m2: torch.uint8,
    }
)


def iterate_npcache(checkpoint: CheckpointFiles) -> Weights:
    """The tensors of `checkpoint` through `<directory>/np`, made first when absent or stale.

    A copy that is up to date is only read: its directory may be read-only.
    """
    cache = checkpoint.directory / "np"
    stored = _read_index(cache, checkpoint)
    if stored is None:
        stored = _make(checkpoint, cache)
    for name, (file, dtype) in stored.items():
        yield name, _map_array(cache / file).view(getattr(torch, dtype))


def _make(checkpoint: CheckpointFiles, cache: Path) -> _Stored:
    try:
        with filelock.FileLock(checkpoint.directory / ".np.lock"):
            # Another process may have made it meanwhile.
            stored = _read_index(cache, checkpoint)
            return _convert(checkpoint, cache) if stored is None else stored
    except OSError as error:
        raise ValueError(
            f"load_format: npcache cannot write {cache}: {error}; "
            "make the directory writable or use auto"
        ) from error


def _sources(checkpoint: CheckpointFiles) -> dict[str, list[int]]:
    """file name -> [bytes, modification time]: what the copy was made from."""
    try:
        stats = {path.name: path.stat() for path in checkpoint.files}
    except OSError as error:
        raise ValueError(
            f"{checkpoint.directory}: a weight file cannot be read: {error}"
        ) from error
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}


def _read_index(cache: Path, checkpoint: CheckpointFiles) -> _Stored | None:
    """What the copy holds; None when it is absent, broken, or of other weights."""
    try:
        index = json.loads((cache / _INDEX).read_text(encoding="utf-8"))
        if index["sources"] != _sources(checkpoint):
            return None
        stored = {name: (file, dtype) for name, (file, dtype) in index["tensors"].items()}
        is_whole = all((cache / file).is_file() for file, _ in stored.values())
        is_known = all(isinstance(getattr(torch, d), torch.dtype) for _, d in stored.values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return stored if is_whole and is_known else None


def _convert(checkpoint: CheckpointFiles, cache: Path) -> _Stored:
    partial = Path(tempfile.mkdtemp(prefix=".np-", dir=checkpoint.directory))
    partial.chmod(0o755)
    try:
        tensors: _Stored = {}
        for name, tensor in iterate_weights(checkpoint):
            file = f"{len(tensors):06d}.npy"
            stored = tensor.contiguous().view(_STORED_AS.get(tensor.dtype, tensor.dtype))
            np.save(partial / file, stored.numpy())
            tensors[name] = (file, str(tensor.dtype).removeprefix("torch."))
        index = {"sources": _sources(checkpoint), "tensors": tensors}
        (partial / _INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")
        if cache.exists():
            shutil.rmtree(cache)
        os.rename(partial, cache)
        return tensors
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _map_array(file: Path) -> torch.Tensor:
    try:
        # Copy on write: torch has no read-only tensors, and nobody writes to these.
        array = np.load(file, mmap_mode="c")
        return torch.from_numpy(array if array.size else np.load(file))
    except (OSError, ValueError, TypeError, EOFError) as error:
        raise ValueError(
            f"load_format: npcache cannot read {file}: {error}; delete {file.parent}, it is made "
            "again"
        ) from error
