"""Reads a GGUF file as dense tensors under the names that transformers uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch

from app.loading.gguf_header import GGUFTensor, Metadata, read_header
from app.loading.model_state import allocate

_NAMES: Mapping[str, str] = MappingProxyType(
    {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
)
_BLOCK_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
)
# Architectures whose tensors differ from transformers' in name and row order only.
_ARCHITECTURES = ("llama", "qwen2", "qwen3")
_ROPE_FACTORS = "rope_freqs.weight"
_ELEMENTS_AT_ONCE = 1 << 18


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """One GGUF file. The tensors stay in the mapped file until they are iterated."""

    path: Path
    architecture: str
    num_heads: int
    num_kv_heads: int
    tensors: tuple[GGUFTensor, ...]

    @property
    def has_rope_factors(self) -> bool:
        """Whether the file scales rotary frequencies by a tensor instead of by its metadata."""
        return any(tensor.name == _ROPE_FACTORS for tensor in self.tensors)

    def weights(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        """(transformers' name, dense tensor of `dtype`) of every tensor, large ones first.

        The order bounds what loading needs: whoever copies the tensors holds the largest one twice
        only while nothing else is there.
        """
        for tensor in sorted(self.tensors, key=lambda tensor: -tensor.num_elements):
            if tensor.name != _ROPE_FACTORS:
                yield transformers_name(tensor.name), self._dense(tensor, dtype)

    def _dense(self, tensor: GGUFTensor, dtype: torch.dtype) -> torch.Tensor:
        import gguf

        dense = allocate(torch.Size(tensor.shape), dtype, torch.device("cpu"))
        rows, values = dense.view(-1, tensor.shape[-1]), tensor.data
        data = values.reshape(-1, values.shape[-1])
        kind = gguf.GGMLQuantizationType(tensor.kind)
        # A few rows at a time: dequantised values are float32 and there are several copies.
        step = max(1, _ELEMENTS_AT_ONCE // tensor.shape[-1])
        for start in range(0, rows.shape[0], step):
            part = gguf.quants.dequantize(data[start : start + step], kind)
            rows[start : start + step].copy_(torch.from_numpy(part))
        if self.architecture != "llama":
            return dense
        module = tensor.name.rsplit(".", 2)[-2]
        num_heads = {"attn_q": self.num_heads, "attn_k": self.num_kv_heads}.get(module)
        return dense if num_heads is None else unpermute_rows(dense, num_heads)


def open_gguf(path: Path) -> GGUFFile:
    """The tensors of `path`; ValueError with the reason if it cannot be read."""
    try:
        metadata, tensors = read_header(path)
        architecture = str(_value(metadata, "general.architecture"))
        num_heads = int(_value(metadata, f"{architecture}.attention.head_count"))
        num_kv_heads = int(metadata.get(f"{architecture}.attention.head_count_kv", num_heads))
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: not a readable GGUF file: {error}") from error
    if architecture not in _ARCHITECTURES:
        raise ValueError(
            f"{path}: GGUF architecture {architecture!r} is not supported "
            f"(supported: {', '.join(_ARCHITECTURES)}); convert the model to safetensors"
        )
    return GGUFFile(path, architecture, num_heads, num_kv_heads, tensors)


def transformers_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; unknown names stay."""
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _BLOCK_NAMES:
        return f"model.layers.{parts[1]}.{_BLOCK_NAMES[parts[2]]}.{parts[3]}"
    if len(parts) == 2 and parts[0] in _NAMES:
        return f"{_NAMES[parts[0]]}.{parts[1]}"
    return name


def unpermute_rows(tensor: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Undo llama.cpp's row order of q and k, which pairs rotary dimensions 2i and 2i+1.

    transformers pairs dimension i with i + head_dim/2. `tensor [num_heads * head_dim, ...]`.
    """
    half = tensor.shape[0] // num_heads // 2
    paired = tensor.reshape(num_heads, half, 2, *tensor.shape[1:])
    return paired.transpose(1, 2).reshape(tensor.shape)


def _value(metadata: Metadata, key: str) -> int | float | str:
    if key not in metadata:
        raise ValueError(f"its metadata lacks {key}")
    return metadata[key]
