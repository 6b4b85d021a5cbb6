"""Builds a model without weights, to ask what loading it would decide."""

from __future__ import annotations

import torch

from app.config.model_config import ModelConfig
from app.loading.base_loader import BaseModelLoader
from app.models.base import BaseCausalLM


class MetaLoader(BaseModelLoader):
    """Every parameter stays on the meta device; no checkpoint is opened beyond its config."""

    def _fill(self, model: BaseCausalLM, model_config: ModelConfig, device: torch.device) -> None:
        return None

    def _post_process(self, model: BaseCausalLM) -> None:
        return None
