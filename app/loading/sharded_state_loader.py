"""Load format sharded_state: a model's own tensors, one set of files a rank."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file
from torch import nn

from app.config.model_config import ModelConfig
from app.loading.base_loader import BaseModelLoader
from app.loading.model_state import collect_state
from app.loading.weight_iterators import Weights, iterate_safetensors, open_safetensors
from app.loading.weight_utils import load_weights

if TYPE_CHECKING:
    from app.models.base import BaseCausalLM

DEFAULT_PATTERN = "model-rank-{rank}-part-{part}.safetensors"
_MAX_PART_BYTES = 5 * 1024**3
_SHARED = "shared"
# The engine runs one rank.
_RANK = 0


class ShardedStateLoader(BaseModelLoader):
    """Reads what `save_sharded_state` wrote: fused tensors under the model's own names.

    `model_loader_extra_config` may hold `pattern`, the file name with `{rank}` and `{part}`.
    """

    def _known_extra_keys(self) -> tuple[str, ...]:
        return ("pattern",)

    def _fill(self, model: BaseCausalLM, model_config: ModelConfig, device: torch.device) -> None:
        pattern = _check_pattern(self.load_config.extra_config.get("pattern", DEFAULT_PATTERN))
        directory, field = model_config.model_path, self.load_config.path_field
        glob = pattern.format(rank=_RANK, part="*")
        files = sorted(directory.glob(glob)) if directory.is_dir() else []
        if not files:
            raise ValueError(
                f"{field}: {directory} holds no {glob}, which load format sharded_state reads; "
                "give the directory that save_sharded_state wrote, or another pattern in "
                "model_loader_extra_config"
            )
        if len(files) != len(list(directory.glob(pattern.format(rank="*", part="*")))):
            raise ValueError(
                f"{field}: {directory} was split for several ranks, this engine runs one; "
                "load the original checkpoint with auto"
            )
        load_weights(
            model, _iterate_parts(files), device, has_own_names=True, source=str(directory)
        )


def save_sharded_state(
    model: nn.Module,
    directory: Path,
    *,
    pattern: str = DEFAULT_PATTERN,
    max_part_bytes: int = _MAX_PART_BYTES,
) -> None:
    """Write the tensors of `model` for load format sharded_state, before they are post-processed.

    Tensors that share their memory are written once. A part holds at most `max_part_bytes`, or one
    tensor. Raises ValueError if the model has no plain weights any more.
    """
    _check_pattern(pattern)
    directory.mkdir(parents=True, exist_ok=True)
    unique, shared = _unique_tensors(model)
    for part, tensors in enumerate(_split(unique, max_part_bytes)):
        metadata = {"format": "pt", _SHARED: json.dumps(shared if part == 0 else {})}
        save_file(tensors, directory / pattern.format(rank=_RANK, part=part), metadata=metadata)


def _check_pattern(pattern: object) -> str:
    if isinstance(pattern, str) and "{rank}" in pattern and "{part}" in pattern:
        return pattern
    raise ValueError(
        f"model_loader_extra_config: pattern {pattern!r} must be a file name with "
        f"{{rank}} and {{part}}, such as {DEFAULT_PATTERN}"
    )


def _unique_tensors(model: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """(name -> tensor, name -> the name under which the same memory is written)."""
    for name, module in model.named_modules():
        # Packed and dequantised layers leave this behind; their files would lack the weight.
        if module._parameters.get("weight", module) is None:
            raise ValueError(_not_plain(f"{name}.weight"))
    unique: dict[str, torch.Tensor] = {}
    shared: dict[str, str] = {}
    written: dict[object, str] = {}
    for name, slot in collect_state(model).items():
        tensor = slot.tensor.detach()
        if tensor.is_meta or tensor.layout != torch.strided:
            raise ValueError(_not_plain(name))
        memory = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and memory in written:
            shared[name] = written[memory]
            continue
        written[memory] = name
        unique[name] = tensor
    return unique, shared


def _not_plain(name: str) -> str:
    return (
        f"save_sharded_state: {name} is not a plain tensor; save the model before its weights are "
        "post-processed, or load it with the linear kernel torch"
    )


def _split(
    tensors: dict[str, torch.Tensor], max_part_bytes: int
) -> Iterator[dict[str, torch.Tensor]]:
    part: dict[str, torch.Tensor] = {}
    num_bytes = 0
    for name, tensor in tensors.items():
        if part and num_bytes + tensor.nbytes > max_part_bytes:
            yield part
            part, num_bytes = {}, 0
        # safetensors refuses views into memory that another tensor holds.
        is_view = tensor.untyped_storage().nbytes() != tensor.nbytes
        part[name] = tensor.clone() if is_view else tensor.contiguous()
        num_bytes += tensor.nbytes
    yield part


def _iterate_parts(files: list[Path]) -> Weights:
    names_of: dict[str, list[str]] = {}
    for file in files:
        for name, first_name in _read_shared(file).items():
            names_of.setdefault(first_name, []).append(name)
    for file in files:
        for name, tensor in iterate_safetensors(file):
            yield name, tensor
            for other_name in names_of.get(name, ()):
                yield other_name, tensor


def _read_shared(file: Path) -> dict[str, str]:
    with open_safetensors(file) as reader:
        shared: dict[str, str] = json.loads((reader.metadata() or {}).get(_SHARED, "{}"))
    return shared
