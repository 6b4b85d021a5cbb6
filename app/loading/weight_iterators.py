"""Yields (name, tensor) from weight files; the tensors are views of mapped files, not copies."""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from app.loading.checkpoint_files import SAFETENSORS, CheckpointFiles

_FORBIDDEN = re.compile(r"Unsupported (?:global|class|operand)[^\n]*?(?:GLOBAL )(\S+)")

Weights = Iterator[tuple[str, torch.Tensor]]


def iterate_weights(checkpoint: CheckpointFiles) -> Weights:
    """Every tensor of `checkpoint`, once where its index says which file holds it."""
    read = iterate_safetensors if checkpoint.pattern == SAFETENSORS else iterate_pt
    for file in checkpoint.files:
        for name, tensor in read(file):
            if checkpoint.file_of is None or checkpoint.file_of.get(name) == file:
                yield name, tensor


def iterate_safetensors(file: Path) -> Weights:
    """The tensors of one safetensors file, in the order in which they lie in it."""
    with open_safetensors(file) as reader:
        for name in reader.offset_keys():
            yield name, reader.get_tensor(name)


@contextmanager
def open_safetensors(file: Path) -> Iterator[Any]:
    """The reader of one file; what is wrong with the file becomes a ValueError that names it."""
    try:
        with safe_open(file, framework="pt") as reader:
            yield reader
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file}: not a readable safetensors file: {error}") from error


def iterate_pt(file: Path) -> Weights:
    """The tensors of one torch file, read without running any code that is pickled in it."""
    state = _load_state_dict(file)
    for name in list(state):
        # Let go one by one: tensors of the old format are memory, not mapped pages.
        yield name, state.pop(name)


def _reason(error: Exception) -> str:
    """What is wrong with the file, without torch's advice on how to run what it holds."""
    text = str(error).strip()
    if not text:
        return "it is cut short"
    forbidden = _FORBIDDEN.search(text)
    if forbidden is not None:
        return f"it holds {forbidden[1]}, and only tensors are read"
    if isinstance(error, pickle.UnpicklingError) or "weights_only" in text:
        return "it is damaged, or holds more than tensors"
    return text.splitlines()[0]


def _load_pickled(file: Path) -> object:
    try:
        return torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError as error:
        # Files older than torch 1.6 are no zip archives and cannot be mapped.
        if "mmap can only be used" not in str(error):
            raise
    return torch.load(file, map_location="cpu", weights_only=True)


def _load_state_dict(file: Path) -> dict[str, torch.Tensor]:
    try:
        # torch warns of what a damaged file seems to be, and then fails on it.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = _load_pickled(file)
    except MemoryError:
        raise
    # A pickle is a program: a damaged one ends in errors of any kind.
    except Exception as error:
        raise ValueError(f"{file}: not a readable torch weight file: {_reason(error)}") from error
    if not isinstance(state, Mapping) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in state.items()
    ):
        raise ValueError(f"{file}: not a state dict; it must map names to tensors, nothing else")
    return dict(state)
