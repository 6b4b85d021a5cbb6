"""Load format gguf: a file of llama.cpp, dequantised while it is read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from app.config.model_config import ModelConfig
from app.loading.base_loader import BaseModelLoader
from app.loading.gguf_reader import open_gguf
from app.loading.weight_utils import load_weights

if TYPE_CHECKING:
    from app.models.base import BaseCausalLM


class GGUFModelLoader(BaseModelLoader):
    """Streams the tensors of one GGUF file into the model, dense and in the model's dtype."""

    def _fill(self, model: BaseCausalLM, model_config: ModelConfig, device: torch.device) -> None:
        path = find_gguf_file(model_config.model_path, self.load_config.path_field)
        file = open_gguf(path)
        rope = getattr(model_config.hf_config, "rope_parameters", None) or {}
        if file.has_rope_factors and rope.get("rope_type", "default") == "default":
            raise ValueError(
                f"{path}: scales rotary frequencies by the tensor rope_freqs.weight, which its "
                "config does not say; give the original model's rope_parameters in "
                "json_model_override_args"
            )
        load_weights(model, file.weights(model_config.dtype), device, source=str(path))


def find_gguf_file(model_path: Path, path_field: str) -> Path:
    """`model_path` itself, or the one GGUF file in that directory."""
    if model_path.is_file():
        return model_path
    found = sorted(model_path.glob("*.gguf"))
    if len(found) != 1:
        raise ValueError(
            f"{path_field}: load format gguf needs one .gguf file, but {model_path} holds "
            f"{', '.join(path.name for path in found) or 'none'}; give the file itself"
        )
    return found[0]
