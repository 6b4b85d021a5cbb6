"""The rotary settings of a checkpoint's config, in the old and in the new spelling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SUPPORTED_KINDS = ("default", "dynamic", "linear", "llama3", "yarn")
_DEFAULT_THETA = 10_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeParameters:
    """`kind` is one of SUPPORTED_KINDS; a setting that a kind does not use is ignored.

    `original_length`: positions that the model was trained on before scaling. `length_ratio`: how
    far its config stretches them (yarn without a factor).
    """

    kind: str
    theta: float
    original_length: int
    length_ratio: float = 1.0
    factor: float | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


def read_rope_parameters(hf_config: Any) -> RopeParameters:
    """From `rope_parameters` (transformers 5), else from `rope_theta` and `rope_scaling`.

    Raises ValueError for a kind that the native models do not compute.
    """
    values = dict(getattr(hf_config, "rope_parameters", None) or {})
    if not values:
        values = dict(getattr(hf_config, "rope_scaling", None) or {})
    if any(isinstance(value, Mapping) for value in values.values()):
        raise ValueError("rope_parameters: settings that differ by layer are not supported")
    kind = values.get("rope_type") or values.get("type") or "default"
    if kind not in SUPPORTED_KINDS:
        raise ValueError(f"rope_type {kind!r} is not one of {', '.join(SUPPORTED_KINDS)}")
    if values.get("partial_rotary_factor", 1.0) not in (None, 1, 1.0):
        raise ValueError(
            f"partial_rotary_factor {values['partial_rotary_factor']!r} is not supported: "
            "the native models rotate whole heads"
        )
    if kind not in ("default", "yarn") and not values.get("factor"):
        raise ValueError(f"rope_type {kind!r} needs a factor in rope_parameters")
    max_length = int(hf_config.max_position_embeddings)
    # dynamic is stretched from what the config says, the others carry the trained length along.
    original = values.get("original_max_position_embeddings") if kind != "dynamic" else None
    original_length = int(original or max_length)
    theta = values.get("rope_theta") or getattr(hf_config, "rope_theta", None) or _DEFAULT_THETA
    if not isinstance(theta, int | float):
        raise ValueError(f"rope_theta must be a number, got {theta!r}")
    optional = {
        name: values[name]
        for name in (
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "attention_factor",
            "mscale",
            "mscale_all_dim",
            "beta_fast",
            "beta_slow",
            "truncate",
        )
        if values.get(name) is not None
    }
    return RopeParameters(
        kind=kind,
        theta=float(theta),
        original_length=original_length,
        length_ratio=max_length / original_length,
        **optional,
    )
