"""Checkpoints with weights of one's choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from app.testing.drafts import write_perfect_draft

Tensors = dict[str, torch.Tensor]
EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


def rewrite(checkpoint: Path, directory: Path, change: Callable[[Tensors], None]) -> Path:
    """A copy of `checkpoint` whose tensors `change` has changed, in place or by replacing them."""
    write_perfect_draft(checkpoint, directory)
    file = directory / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        file,
        metadata={"format": "pt"},
    )
    return directory


def zero_layers(tensors: Tensors) -> None:
    """No layer adds anything: logits depend on the last token alone, by embedding and head."""
    for name, tensor in tensors.items():
        if name.startswith("model.layers."):
            tensor.zero_()
    tensors[NORM].fill_(1.0)


def recite(token_ids: Sequence[int]) -> Callable[[Tensors], None]:
    """A change that makes a model say `token_ids[1:]` behind `token_ids[0]`; all ids differ."""
    assert len(set(token_ids)) == len(token_ids), "each token has one successor"

    def change(tensors: Tensors) -> None:
        zero_layers(tensors)
        hidden_size = tensors[EMBEDDING].shape[1]
        assert len(token_ids) <= hidden_size, "each token has a direction of its own"
        tensors[EMBEDDING].zero_()
        tensors[HEAD].zero_()
        for index, token in enumerate(token_ids):
            tensors[EMBEDDING][token, index] = 1.0
        for index, following in enumerate(token_ids[1:]):
            tensors[HEAD][following, index] = 1.0

    return change
