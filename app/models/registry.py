"""Which class runs an architecture; classes are imported when they are asked for."""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType

from app.config.model_config import ModelConfig
from app.models.base import BaseCausalLM

_NATIVE: MappingProxyType[str, tuple[str, str]] = MappingProxyType(
    {
        "LlamaForCausalLM": ("app.models.llama", "LlamaForCausalLM"),
        "MistralForCausalLM": ("app.models.mistral", "MistralForCausalLM"),
        "Qwen2ForCausalLM": ("app.models.qwen2", "Qwen2ForCausalLM"),
        "Qwen3ForCausalLM": ("app.models.qwen3", "Qwen3ForCausalLM"),
        "SharedExpertsForCausalLM": ("app.models.shared_experts", "SharedExpertsForCausalLM"),
    }
)
_FALLBACK = ("app.models.transformers_backend", "TransformersForCausalLM")


def native_architectures() -> tuple[str, ...]:
    """Architectures with a model of this package."""
    return tuple(sorted(_NATIVE))


def resolve_model_class(model_config: ModelConfig, model_impl: str) -> type[BaseCausalLM]:
    """The class for `model_config.architecture`.

    `model_impl`: "native" refuses other architectures, "transformers" always takes transformers'
    own code, "auto" takes it where no native model exists. Raises ValueError that names the known
    architectures, or why transformers' code cannot serve this one.
    """
    architecture = model_config.architecture
    if model_impl != "transformers" and architecture in _NATIVE:
        return _load(*_NATIVE[architecture])
    if model_impl == "native":
        raise ValueError(
            f"model_impl 'native' knows no {architecture} ({model_config.model_path}); it knows "
            f"{', '.join(native_architectures())}; use model_impl 'auto' or 'transformers'"
        )
    # Only here: it imports the modelling side of transformers.
    from app.models.transformers_support import check_supported

    try:
        check_supported(model_config.hf_config)
    except ValueError as error:
        raise ValueError(
            f"{error} (native architectures: {', '.join(native_architectures())})"
        ) from None
    return _load(*_FALLBACK)


def _load(module_name: str, class_name: str) -> type[BaseCausalLM]:
    loaded: type[BaseCausalLM] = getattr(import_module(module_name), class_name)
    return loaded
