"""How long a sequence a model can serve, from its config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# Positions are rows of a trained table: no row, no position.
_LEARNED_POSITION_TYPES = frozenset(
    {"biogpt", "ctrl", "gpt2", "gpt_bigcode", "gpt_neo", "openai-gpt", "opt"}
)
# Their max_position_embeddings is the length after scaling already.
_SCALED_ALREADY = frozenset({"default", "llama3", "longrope", "mrope", "su"})


def has_learned_positions(hf_config: PretrainedConfig) -> bool:
    """Whether the model looks positions up in a table of trained rows."""
    return hf_config.model_type in _LEARNED_POSITION_TYPES


def max_positions(hf_config: PretrainedConfig) -> int | None:
    """`max_position_embeddings` under any of its names; None where the config has none."""
    for name in ("max_position_embeddings", "max_sequence_length", "n_positions", "seq_length"):
        value = getattr(hf_config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def derived_context_length(hf_config: PretrainedConfig) -> int | None:
    """The longest sequence the config allows: its positions, as rope scaling extends them."""
    positions = max_positions(hf_config)
    rope = _rope_parameters(hf_config)
    rope_type = str(rope.get("rope_type", rope.get("type", "default")))
    factor = rope.get("factor")
    # Gemma 3 states its length after scaling, although its scaling is linear.
    is_scaled_already = rope_type in _SCALED_ALREADY or hf_config.model_type.startswith("gemma3")
    if positions is None or is_scaled_already or not isinstance(factor, int | float):
        return positions
    original = rope.get("original_max_position_embeddings") or positions
    return max(positions, int(original * factor))


def _rope_parameters(hf_config: PretrainedConfig) -> Mapping[str, Any]:
    rope = getattr(hf_config, "rope_parameters", None) or {}
    # Models with several kinds of layers hold one set for each kind.
    full_attention = rope.get("full_attention")
    return full_attention if isinstance(full_attention, Mapping) else rope
