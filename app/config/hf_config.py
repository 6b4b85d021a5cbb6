"""Reads a checkpoint's config into a transformers config object that belongs to the caller."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.config.config_values import ROPE_KEYS, ConfigOrigin, check_config_values
from app.config.json_file import read_json_object
from app.config.names import nearest_name

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_logger = logging.getLogger(__name__)

CONFIG_NAME = "config.json"
_FIELD_AT_FAULT = re.compile(r"Validation error for field '(\w+)'")
# Read of any config, although no class declares them.
_ALWAYS_KNOWN = ROPE_KEYS | {"auto_map", "model_type", "quantization_config", "torch_dtype"}


def load_hf_config(
    model_path: Path,
    *,
    trust_remote_code: bool,
    trust_field: str,
    overrides: Mapping[str, Any],
    override_field: str = "json_model_override_args",
) -> PretrainedConfig:
    """The config of a checkpoint directory or `.gguf` file with `overrides` merged into it.

    Overrides are merged before the config object is made, so that what it derives from them is
    right too. `trust_field` is the setting named when the checkpoint brings code that may not run,
    `override_field` the one that holds `overrides`. Raises ValueError naming the file.
    """
    if model_path.suffix == ".gguf":
        origin = ConfigOrigin(model_path, overrides, override_field)
        return _merged(_load_gguf_config(model_path), origin)
    path = model_path / CONFIG_NAME
    origin = ConfigOrigin(path, overrides, override_field)
    try:
        values = read_json_object(path)
    except FileNotFoundError:
        raise ValueError(
            f"{path}: no such file; a checkpoint directory holds {CONFIG_NAME}"
        ) from None
    # An override may replace a faulty value, but rope settings are taken apart to be merged.
    kept = {key: v for key, v in values.items() if key not in overrides or key in ROPE_KEYS}
    check_config_values(kept, ConfigOrigin(path, {}, override_field))
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise ValueError(f"{path}: model_type is missing; it names the kind of model")
    if "AutoConfig" in (values.get("auto_map") or {}):
        from transformers import CONFIG_MAPPING

        if trust_remote_code:
            return _merged(_load_remote_code_config(model_path), origin)
        if model_type not in CONFIG_MAPPING:
            raise ValueError(
                f"{path}: model_type {model_type!r} needs Python code that the checkpoint brings "
                f"along; set {trust_field} to true to run it"
            )
    config = _build(_override(values, origin), origin)
    _warn_of_unknown(origin, values, type(config))
    return config


def _warn_of_unknown(
    origin: ConfigOrigin, values: Mapping[str, Any], config_class: type[PretrainedConfig]
) -> None:
    """An override that nothing reads is a typing error more often than not."""
    if not config_class.model_type:
        return  # an architecture of this project's own: its config declares nothing
    declared = getattr(config_class, "__dataclass_fields__", ())
    known = _ALWAYS_KNOWN.union(values, declared, config_class.attribute_map)
    for key in origin.overrides:
        if key not in known:
            nearest = nearest_name(key, known)
            hint = f"; did you mean {nearest!r}?" if nearest else ""
            _logger.warning(
                "%s: %s has no effect on %s%s", origin.override_field, key, origin.path, hint
            )


def _load_gguf_config(path: Path) -> PretrainedConfig:
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    # transformers raises whatever its parser meets in a broken or unknown file.
    except Exception as error:
        raise ValueError(f"{path}: its config cannot be read: {_one_line(error)}") from error
    # A .gguf file names the kind of model but not the class.
    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    if not config.architectures and name is not None:
        config.architectures = [name]
    return config


def _load_remote_code_config(directory: Path) -> PretrainedConfig:
    from transformers import AutoConfig

    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(directory, trust_remote_code=True)
    # The checkpoint's own code runs here and may raise anything.
    except Exception as error:
        raise ValueError(
            f"{directory / CONFIG_NAME}: the checkpoint's own code failed: {_one_line(error)}"
        ) from error
    return config


def _merged(config: PretrainedConfig, origin: ConfigOrigin) -> PretrainedConfig:
    if not origin.overrides:
        return config
    return _from_dict(type(config), _override(config.to_dict(), origin), origin)


def _build(values: dict[str, Any], origin: ConfigOrigin) -> PretrainedConfig:
    from transformers import CONFIG_MAPPING, PretrainedConfig

    model_type = values["model_type"]
    # An unknown type may still be one of this project's own architectures: keep its values.
    known = model_type in CONFIG_MAPPING
    return _from_dict(CONFIG_MAPPING[model_type] if known else PretrainedConfig, values, origin)


def _from_dict(
    config_class: type[PretrainedConfig], values: dict[str, Any], origin: ConfigOrigin
) -> PretrainedConfig:
    check_config_values(values, origin)
    try:
        config: PretrainedConfig = config_class.from_dict(values)
    # transformers checks values with its own classes of error, KeyError among them.
    except Exception as error:
        field = _FIELD_AT_FAULT.match(str(error))
        if field is not None:
            problem = _cause(error).removeprefix(f"Field '{field[1]}' ")
            raise origin.fault(field[1], problem) from error
        changed = ", ".join(sorted(origin.overrides))
        source = f" (with {origin.override_field} for {changed})" if changed else ""
        raise ValueError(f"{origin.path}: {_cause(error)}{source}") from error
    return config


def _cause(error: Exception) -> str:
    # transformers wraps what a check of a field or of several says.
    cause = error.__cause__
    if type(error).__name__.startswith("StrictDataclass") and cause is not None:
        return " ".join(str(cause).split())
    return _one_line(error)


def _override(values: Mapping[str, Any], origin: ConfigOrigin) -> dict[str, Any]:
    """`values` with `overrides` over them, in whichever spelling both give the rope settings."""
    overrides = origin.overrides
    # Before the rope settings are taken apart below.
    check_config_values(overrides, origin)
    is_about_rope = not ROPE_KEYS.isdisjoint(overrides)
    fold = fold_rope if is_about_rope else dict
    merged = merge(fold(values), fold(overrides))
    rope = merged.get("rope_parameters")
    is_by_layer = isinstance(rope, Mapping) and any(isinstance(v, Mapping) for v in rope.values())
    if is_by_layer and not {"rope_scaling", "rope_theta"}.isdisjoint(overrides):
        raise ValueError(
            f"{origin.override_field}: {origin.path} has rope settings by kind of layer; override "
            "rope_parameters, not rope_scaling or rope_theta"
        )
    _shorten_layer_types(merged, overrides)
    return merged


def fold_rope(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with `rope_scaling` and `rope_theta` moved to `rope_parameters`.

    transformers 5 reads both spellings, but of two spellings in one config it drops one silently.
    """
    # Gemma 3's old spelling holds two bases, which transformers itself has to sort out.
    if "rope_local_base_freq" in values:
        return dict(values)
    rope = dict(values.get("rope_parameters") or {})
    if "rope_theta" in values:
        rope["rope_theta"] = values["rope_theta"]
    rope |= values.get("rope_scaling") or {}
    folded = {key: v for key, v in values.items() if key not in ("rope_scaling", "rope_theta")}
    return folded | {"rope_parameters": rope} if rope else folded


def merge(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with `overrides` over them; nested mappings merge, lists replace."""
    merged = dict(values)
    for key, value in overrides.items():
        present = merged.get(key)
        if isinstance(value, Mapping) and isinstance(present, Mapping):
            value = merge(present, value)
        merged[key] = value
    return merged


def _shorten_layer_types(merged: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    """A smaller number of layers keeps the first layers' types, which transformers insists on."""
    count, types = overrides.get("num_hidden_layers"), merged.get("layer_types")
    if isinstance(count, int) and isinstance(types, list) and "layer_types" not in overrides:
        merged["layer_types"] = types[:count]


def _one_line(error: Exception) -> str:
    if isinstance(error, KeyError) and error.args and " " in str(error.args[0]):
        return str(error.args[0])  # a sentence, which str() would put in quotes
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
