"""Checks a config.json before transformers reads it: many of its classes compute with any value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any

ROPE_KEYS = frozenset({"rope_parameters", "rope_scaling", "rope_theta"})

_Rule = tuple[Callable[[Any], bool], str]


@dataclass(frozen=True, slots=True)
class ConfigOrigin:
    """Where the values of a config come from: its file, and the user's overrides of it.

    `override_field`: what the user calls the setting that holds `overrides`.
    """

    path: Path
    overrides: Mapping[str, Any]
    override_field: str

    def fault(self, name: str, problem: str) -> ValueError:
        """An error about the value called `name`, a path such as rope_parameters.factor."""
        top = name.split(".", maxsplit=1)[0]
        aliases = ROPE_KEYS if top in ROPE_KEYS else {top}
        is_override = not aliases.isdisjoint(self.overrides)
        source = f" (set by {self.override_field})" if is_override else ""
        return ValueError(f"{self.path}: {name} {problem}{source}")


def check_config_values(values: Mapping[str, Any], origin: ConfigOrigin) -> None:
    """Raise ValueError naming file and value where one is of a kind that no model has."""
    _check(values, _TOP, "", origin)
    for key in ("rope_parameters", "rope_scaling"):
        _check_rope(values.get(key), key, origin)
    text = values.get("text_config")
    if isinstance(text, Mapping):
        _check(text, _TOP, "text_config.", origin)
        for key in ("rope_parameters", "rope_scaling"):
            _check_rope(text.get(key), f"text_config.{key}", origin)


def _check_rope(values: Any, name: str, origin: ConfigOrigin) -> None:
    if not isinstance(values, Mapping):
        return
    _check(values, _ROPE, f"{name}.", origin)
    for key, part in values.items():
        # Models with several kinds of layers hold one set for each kind.
        if isinstance(part, Mapping):
            _check(part, _ROPE, f"{name}.{key}.", origin)


def _check(
    values: Mapping[str, Any], rules: Mapping[str, _Rule], prefix: str, origin: ConfigOrigin
) -> None:
    for name, (is_right, expected) in rules.items():
        value = values.get(name)
        if value is not None and not is_right(value):
            raise origin.fault(f"{prefix}{name}", f"must be {expected}, got {value!r}")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    # JSON as Python reads it has NaN and Infinity too.
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _is_count(value: Any) -> bool:
    # Some models give one number for each layer.
    return isinstance(value, list) or (_is_whole(value) and value >= 1)


def _is_token_ids(value: Any) -> bool:
    """Whether `value` is a token id or a list of them."""
    return _is_whole(value) or (isinstance(value, list) and all(map(_is_whole, value)))


_COUNT: _Rule = (_is_count, "a positive whole number")
_NUMBER: _Rule = (_is_number, "a number")
_POSITIVE: _Rule = (lambda value: _is_number(value) and value > 0, "a number above 0")
_FACTOR: _Rule = (
    lambda value: _is_number(value) and 0 < value <= 1e6,
    "a number above 0, at most 1000000",
)
_MAPPING: _Rule = (lambda value: isinstance(value, Mapping), "a JSON object")
# A mapping names one for each part of a model.
_DTYPE: _Rule = (lambda value: isinstance(value, str | Mapping), "the name of a dtype")
_TEXT: _Rule = (lambda value: isinstance(value, str), "a text")
_TOKEN_IDS: _Rule = (_is_token_ids, "a token id or a list of token ids")

_TOP: Mapping[str, _Rule] = MappingProxyType(
    {
        "architectures": (
            lambda value: (
                isinstance(value, list) and all(isinstance(name, str) and name for name in value)
            ),
            "a list of class names",
        ),
        "auto_map": _MAPPING,
        "dtype": _DTYPE,
        "eos_token_id": _TOKEN_IDS,
        "head_dim": _COUNT,
        "hidden_act": _TEXT,
        "hidden_size": _COUNT,
        "intermediate_size": _COUNT,
        "max_position_embeddings": (_is_whole, "a whole number"),
        "num_attention_heads": _COUNT,
        "num_hidden_layers": _COUNT,
        "num_key_value_heads": _COUNT,
        "quantization_config": _MAPPING,
        "rms_norm_eps": _NUMBER,
        "rope_parameters": _MAPPING,
        "rope_scaling": _MAPPING,
        "rope_theta": _POSITIVE,
        "text_config": _MAPPING,
        "torch_dtype": _DTYPE,
        "vocab_size": _COUNT,
    }
)
_ROPE: Mapping[str, _Rule] = MappingProxyType(
    {
        "attention_factor": _NUMBER,
        "beta_fast": _NUMBER,
        "beta_slow": _NUMBER,
        "factor": _FACTOR,
        "high_freq_factor": _NUMBER,
        "low_freq_factor": _NUMBER,
        "mscale": _NUMBER,
        "mscale_all_dim": _NUMBER,
        "original_max_position_embeddings": _COUNT,
        "partial_rotary_factor": _NUMBER,
        "rope_theta": _POSITIVE,
        "rope_type": _TEXT,
        "type": _TEXT,
    }
)
