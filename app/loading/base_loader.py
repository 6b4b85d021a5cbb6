"""What every load format shares: build on the meta device, fill, post-process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch

from app.config.load_config import LoadConfig
from app.config.model_config import ModelConfig

if TYPE_CHECKING:
    from app.models.base import BaseCausalLM


class BaseModelLoader(ABC):
    """Loads one model. A loader belongs to one runner, as its `load_config` does."""

    def __init__(self, load_config: LoadConfig) -> None:
        self.load_config = load_config
        self._check_extra_config()

    def load_model(
        self,
        model_config: ModelConfig,
        model_class: type[BaseCausalLM],
        linear_kernel: str,
        device: torch.device,
    ) -> BaseCausalLM:
        """A model of `model_class` with its weights on `device`, ready to run."""
        # Tensors made under inference mode could not be used outside it.
        with torch.inference_mode(False), torch.no_grad():
            with torch.device("meta"):
                model = model_class(model_config, linear_kernel=linear_kernel)
            model.requires_grad_(False).eval()
            self._fill(model, model_config, device)
            self._post_process(model)
            _move_computed_buffers(model, device)
        return model

    @abstractmethod
    def _fill(self, model: BaseCausalLM, model_config: ModelConfig, device: torch.device) -> None:
        """Give every meta parameter and persistent buffer of `model` its values."""

    def _post_process(self, model: BaseCausalLM) -> None:
        model.process_weights_after_loading(self.load_config)

    def _known_extra_keys(self) -> tuple[str, ...]:
        return ()

    def _check_extra_config(self) -> None:
        known = self._known_extra_keys()
        unknown = sorted(set(self.load_config.extra_config) - set(known))
        if unknown:
            raise ValueError(
                f"model_loader_extra_config: load format {self.load_config.load_format} does not "
                f"know {', '.join(unknown)}; it knows {', '.join(known) or 'no keys at all'}"
            )


def _move_computed_buffers(model: BaseCausalLM, device: torch.device) -> None:
    """Buffers that no checkpoint holds (rotary frequencies) are computed where models are built."""
    for module in model.modules():
        for name in module._non_persistent_buffers_set:
            buffer = module._buffers[name]
            if buffer is not None:
                module._buffers[name] = buffer.to(device)
