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

# numpy lacks these types: the bytes are kept as integers of the same width.
_STORED_AS: Mapping[torch.dtype, torch.dtype] = MappingProxyType(
    {
        torch.bfloat16: torch.uint16,
        torch.float8_e4m3fn: torch.uint8,
        torch.float8_e5m2: torch.uint8,
    }
)


def iterate_npcache(checkpoint: CheckpointFiles) -> Weights:
    """The tensors of `checkpoint` through `<directory>/np`, made first when absent or stale."""
    cache = checkpoint.directory / "np"
    try:
        with filelock.FileLock(checkpoint.directory / ".np.lock"):
            if _read_index(cache).get("sources") != _sources(checkpoint):
                _convert(checkpoint, cache)
    except OSError as error:
        raise ValueError(
            f"load_format: npcache cannot write {cache}: {error}; "
            "make the directory writable or use auto"
        ) from error
    tensors = _read_index(cache)["tensors"]
    assert isinstance(tensors, dict)
    for name, (file, dtype) in tensors.items():
        yield name, _map_array(cache / file).view(getattr(torch, dtype))


def _sources(checkpoint: CheckpointFiles) -> dict[str, list[int]]:
    """file name -> [bytes, modification time]: what the copy was made from."""
    stats = ((path.name, path.stat()) for path in checkpoint.files)
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats}


def _read_index(cache: Path) -> dict[str, object]:
    try:
        index = json.loads((cache / _INDEX).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return index if isinstance(index, dict) else {}


def _convert(checkpoint: CheckpointFiles, cache: Path) -> None:
    partial = Path(tempfile.mkdtemp(prefix=".np-", dir=checkpoint.directory))
    partial.chmod(0o755)
    try:
        tensors: dict[str, tuple[str, str]] = {}
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
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _map_array(file: Path) -> torch.Tensor:
    # Copy on write: torch has no read-only tensors, and nobody writes to these.
    array = np.load(file, mmap_mode="c")
    return torch.from_numpy(array) if array.size else torch.from_numpy(np.load(file))
