"""Makes drafts of every quality from a target's checkpoint, with the target's tokenizer.

A *perfect* draft has everything accepted, an *unrelated* one next to nothing, a *noisy* one
something between; what the target emits must be the same with all three.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors.torch import load_file, save_file

_WEIGHTS = "model.safetensors"
_CONFIG = "config.json"
_VOCABULARY_TENSORS = ("embed_tokens.weight", "wte.weight", "lm_head.weight")
# Far above any real logit: a draft that looked at padded rows would propose nothing else.
_PADDING_SCALE = 10.0


def write_perfect_draft(target: Path, directory: Path) -> Path:
    """The target itself, under another path."""
    shutil.copytree(target, directory)
    return directory


def write_noisy_draft(target: Path, directory: Path, strength: float = 0.05, seed: int = 1) -> Path:
    """The target with noise of `strength` times each tensor's standard deviation."""

    def disturb(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        noise = torch.randn(tensor.shape, generator=generator)
        return tensor + strength * _spread(tensor) * noise

    return _rewrite(target, directory, disturb, seed)


def write_unrelated_draft(target: Path, directory: Path, seed: int = 2) -> Path:
    """A model of the target's shape that knows nothing of it."""

    def redraw(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        noise = torch.randn(tensor.shape, generator=generator)
        return tensor.mean() + _spread(tensor) * noise

    return _rewrite(target, directory, redraw, seed)


def pad_vocabulary(checkpoint: Path, directory: Path, num_rows: int = 128, seed: int = 3) -> Path:
    """The checkpoint with `num_rows` more embedding and head rows than its tokenizer has tokens.

    The rows hold large random values, so that their logits win unless they are left out.
    """
    shutil.copytree(checkpoint, directory)
    config = json.loads((directory / _CONFIG).read_text(encoding="utf-8"))
    vocab_size = config["vocab_size"]
    generator = torch.Generator().manual_seed(seed)
    tensors = load_file(directory / _WEIGHTS)
    for name, tensor in tensors.items():
        if name.endswith(_VOCABULARY_TENSORS):
            assert tensor.shape[0] == vocab_size, f"{name} has {tensor.shape[0]} rows"
            rows = torch.randn((num_rows, tensor.shape[1]), generator=generator)
            rows = (_PADDING_SCALE * _spread(tensor) * rows).to(tensor.dtype)
            tensors[name] = torch.cat([tensor, rows])
    save_file(tensors, directory / _WEIGHTS, metadata={"format": "pt"})
    config["vocab_size"] = vocab_size + num_rows
    (directory / _CONFIG).write_text(json.dumps(config, indent=2), encoding="utf-8")
    return directory


# What a lossless algorithm is tried with: name -> writer(target, directory).
DRAFT_WRITERS: Mapping[str, Callable[[Path, Path], Path]] = MappingProxyType(
    {
        "perfect": write_perfect_draft,
        "noisy": write_noisy_draft,
        "unrelated": write_unrelated_draft,
    }
)


def _rewrite(
    target: Path,
    directory: Path,
    change: Callable[[torch.Tensor, torch.Generator], torch.Tensor],
    seed: int,
) -> Path:
    shutil.copytree(target, directory)
    generator = torch.Generator().manual_seed(seed)
    # Sorted, so that the noise does not depend on the order in the file.
    tensors = {
        name: change(tensor.float(), generator).to(tensor.dtype)
        for name, tensor in sorted(load_file(directory / _WEIGHTS).items())
    }
    save_file(tensors, directory / _WEIGHTS, metadata={"format": "pt"})
    return directory


def _spread(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float().std() if tensor.numel() > 1 else torch.ones(())
