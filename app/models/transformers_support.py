"""Which architectures of transformers run with this engine's attention, and why others cannot."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

# Layer types whose only state is the key and value of each token.
_ATTENTION_LAYER_TYPES = ("full_attention", "sliding_attention")
_CAUSAL_LM_SUFFIXES = ("ForCausalLM", "LMHeadModel")


def refusal(architecture: str, reason: str) -> ValueError:
    """The error for a model that the transformers backend cannot run."""
    return ValueError(f"{architecture} cannot run through the transformers backend: {reason}")


def check_supported(hf_config: PretrainedConfig) -> type[PreTrainedModel]:
    """The causal language model class of `hf_config`, as far as the config tells.

    What only the modelling code shows (attention sinks, biases, layers that do not attend) is found
    when the model is built. Raises ValueError naming the architecture and the reason.
    """
    architecture = (hf_config.architectures or [type(hf_config).__name__])[0]
    if getattr(hf_config, "is_encoder_decoder", False):
        raise refusal(architecture, "it is an encoder-decoder model, not decoder-only")
    if hf_config.get_text_config() is not hf_config:
        raise refusal(architecture, "it is a multimodal model; only text decoders are supported")
    model_class = _causal_lm_class(hf_config, architecture)
    if not model_class._supports_attention_backend:
        raise refusal(
            architecture,
            "its modelling code does not declare _supports_attention_backend: its layers are no "
            "plain softmax attention (state spaces, ALiBi, relative biases) or do not go through "
            "transformers' attention interface",
        )
    _check_layers(hf_config, architecture)
    return model_class


def _causal_lm_class(hf_config: PretrainedConfig, architecture: str) -> type[PreTrainedModel]:
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(hf_config), None)
    if model_class is None:
        raise refusal(
            architecture,
            f"transformers has no causal language model for model_type {hf_config.model_type!r}",
        )
    if isinstance(model_class, tuple):
        model_class = model_class[0]
    is_causal_lm = architecture == model_class.__name__ or architecture.endswith(
        _CAUSAL_LM_SUFFIXES
    )
    if not is_causal_lm:
        raise refusal(
            architecture,
            f"it is not a causal language model; that of model_type {hf_config.model_type!r} is "
            f"{model_class.__name__}",
        )
    resolved: type[PreTrainedModel] = model_class
    return resolved


def _check_layers(hf_config: PretrainedConfig, architecture: str) -> None:
    layer_types = getattr(hf_config, "layer_types", None) or ()
    others = sorted(set(layer_types) - set(_ATTENTION_LAYER_TYPES))
    if others:
        raise refusal(
            architecture,
            f"it has layers of type {', '.join(others)}; supported are "
            f"{', '.join(_ATTENTION_LAYER_TYPES)}",
        )
    if getattr(hf_config, "num_kv_shared_layers", None):
        raise refusal(
            architecture,
            f"{hf_config.num_kv_shared_layers} of its layers reuse keys and values of other layers "
            "(num_kv_shared_layers)",
        )
    if getattr(hf_config, "add_cross_attention", False):
        raise refusal(architecture, "it has cross-attention layers (add_cross_attention)")
    if getattr(hf_config, "use_bidirectional_attention", False):
        raise refusal(architecture, "its attention is not causal (use_bidirectional_attention)")
