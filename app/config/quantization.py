"""Which quantization a model is loaded with: what was asked for and what its checkpoint says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.config.json_file import read_json_object

if TYPE_CHECKING:
    from transformers import PretrainedConfig

MODELOPT_FP4 = "modelopt_fp4"
UNQUANTIZED = "unquant"
_MODELOPT_NAME = "hf_quant_config.json"


def choose_quantization(
    asked: str | None, field: str, hf_config: PretrainedConfig, model_path: Path
) -> str | None:
    """`asked` ("unquant" forces none), else what the checkpoint declares, else None.

    Raises ValueError for a kind this build cannot read, or one that contradicts `asked`.
    """
    if asked == UNQUANTIZED:
        return None
    method, algorithm = _declared(hf_config, model_path)
    if method is None:
        return asked
    if (method, algorithm) in (
        ("modelopt", "NVFP4"),
        (MODELOPT_FP4, "NVFP4"),
        (MODELOPT_FP4, None),
    ):
        return MODELOPT_FP4
    name = method if algorithm is None else f"{method} {algorithm}"
    if asked is not None:
        raise ValueError(
            f"{field} = {asked!r}: the checkpoint {model_path} is quantized as {name!r}"
        )
    raise ValueError(
        f"{model_path}: quantization {name!r} is not supported; supported is {MODELOPT_FP4} "
        "(ModelOpt NVFP4); use an unquantized checkpoint"
    )


def _declared(hf_config: PretrainedConfig, model_path: Path) -> tuple[str | None, str | None]:
    """`(method, algorithm)` of config.json, or of ModelOpt's own file beside it."""
    config = getattr(hf_config, "quantization_config", None)
    if config is not None and not isinstance(config, Mapping):
        config = config.to_dict()
    if config:
        # A plain copy of the file's section: {"quant_method": "modelopt", "quant_algo": "NVFP4"}.
        method = str(config.get("quant_method", "unknown"))
        algorithm = config.get("quant_algo")
        return method.lower(), None if algorithm is None else str(algorithm).upper()
    path = model_path / _MODELOPT_NAME
    if not path.is_file():
        return None, None
    section: Any = read_json_object(path).get("quantization")
    if not isinstance(section, Mapping) or "quant_algo" not in section:
        raise ValueError(f"{path}: cannot be read: it must hold quantization.quant_algo")
    algorithm = section["quant_algo"]
    # ModelOpt writes the file with null for a model that it left alone.
    return (None, None) if algorithm is None else ("modelopt", str(algorithm).upper())
