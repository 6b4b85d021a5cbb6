"""The names of dtypes in a configuration, and torch's own."""

from __future__ import annotations

import torch


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype called `name` ("float32", "bfloat16" or "float16")."""
    if name == "float32":
        return torch.float32
    if name == "bfloat16":
        return torch.bfloat16
    if name == "float16":
        return torch.float16
    raise ValueError(f"dtype {name!r} is not one of float32, bfloat16, float16")


def dtype_name(dtype: torch.dtype) -> str:
    """The inverse of `torch_dtype`."""
    return str(dtype).removeprefix("torch.")
