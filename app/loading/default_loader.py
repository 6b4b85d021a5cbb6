"""Load formats auto, safetensors, pt and npcache: weight files of a checkpoint directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from app.config.model_config import ModelConfig
from app.loading.base_loader import BaseModelLoader
from app.loading.checkpoint_files import find_checkpoint_files
from app.loading.npcache import iterate_npcache
from app.loading.weight_iterators import Weights, iterate_weights
from app.loading.weight_utils import load_weights

if TYPE_CHECKING:
    from app.models.base import BaseCausalLM


class DefaultModelLoader(BaseModelLoader):
    """Streams the tensors of the checkpoint's files into the model."""

    def _fill(self, model: BaseCausalLM, model_config: ModelConfig, device: torch.device) -> None:
        weights = self._weights(model_config)
        load_weights(model, weights, device, source=str(model_config.model_path))

    def _weights(self, model_config: ModelConfig) -> Weights:
        load_format = self.load_config.load_format
        checkpoint = find_checkpoint_files(
            model_config.model_path, load_format, path_field=self.load_config.path_field
        )
        return (
            iterate_npcache(checkpoint) if load_format == "npcache" else iterate_weights(checkpoint)
        )
