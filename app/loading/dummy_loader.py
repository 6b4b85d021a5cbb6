"""Load format dummy: noise instead of a checkpoint."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch

from app.config.model_config import ModelConfig
from app.loading.base_loader import BaseModelLoader
from app.loading.model_state import collect_state

if TYPE_CHECKING:
    from app.models.base import BaseCausalLM

_RANGE = 1e-3
# The noise is float32: of a large embedding it would be twice the bf16 weight.
_ELEMENTS_AT_ONCE = 1 << 20


class DummyModelLoader(BaseModelLoader):
    """Fills every element with its own noise and opens no weight file.

    The noise depends on the parameter's name and shape alone, so that two models with a layer in
    common agree on it. Models that expect equal values in a tensor must repair them afterwards, as
    the NVFP4 layers do with their global scales.
    """

    def _fill(self, model: BaseCausalLM, model_config: ModelConfig, device: torch.device) -> None:
        # One for all: freed between two weights, it would leave holes as large as the model.
        scratch = torch.empty(_ELEMENTS_AT_ONCE)
        for name, slot in collect_state(model).items():
            fill_with_noise(name, slot.materialize(device), scratch)


def fill_with_noise(name: str, tensor: torch.Tensor, scratch: torch.Tensor) -> None:
    """Overwrite `tensor`: floats uniform in +-1e-3, bytes uniform over all their values.

    `scratch [n]` float32 is overwritten too; the noise does not depend on what it held.
    """
    # Drawn on the CPU, so that a model on an accelerator has the same values.
    generator = torch.Generator().manual_seed(_seed(name))
    flat = tensor.view(-1)
    for start in range(0, flat.shape[0], scratch.shape[0]):
        part = flat[start : start + scratch.shape[0]]
        noise = scratch[: part.shape[0]]
        if tensor.is_floating_point():
            noise.uniform_(-_RANGE, _RANGE, generator=generator)
        else:
            info = torch.iinfo(tensor.dtype)
            noise.random_(max(info.min, -128), min(info.max, 255) + 1, generator=generator)
        part.copy_(noise)


def _seed(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1
