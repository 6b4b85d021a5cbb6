"""Keys and values of every slot, one pair of tensors a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class KVGeometry:
    """Shape of one layer's cache: `num_kv_heads` heads of `head_dim`."""

    num_kv_heads: int
    head_dim: int

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        return 2 * self.num_kv_heads * self.head_dim * dtype.itemsize


def kv_bytes_per_token(layers: Sequence[KVGeometry], dtype: torch.dtype) -> int:
    """Bytes that one slot costs over all layers."""
    return sum(layer.bytes_per_token(dtype) for layer in layers)


class TokenToKVPool:
    """`k[layer], v[layer]`: `[num_slots, num_kv_heads, head_dim]`; row = slot id.

    Target and draft have a pool each over the same slot ids, so freeing a slot frees it in both.
    """

    def __init__(
        self,
        num_slots: int,
        layers: Sequence[KVGeometry],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_slots = num_slots
        self.dtype = dtype
        self.layers = tuple(layers)
        # Zeros, not empty: a padding slot that is read and masked must not hold NaN.
        self.k = [self._buffer(layer, device) for layer in layers]
        self.v = [self._buffer(layer, device) for layer in layers]

    def _buffer(self, layer: KVGeometry, device: torch.device) -> torch.Tensor:
        shape = (self.num_slots, layer.num_kv_heads, layer.head_dim)
        return torch.zeros(shape, dtype=self.dtype, device=device)

    @property
    def num_bytes(self) -> int:
        return self.num_slots * kv_bytes_per_token(self.layers, self.dtype)

    def write(self, layer_id: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store `k, v [T, num_kv_heads, head_dim]` at `slots [T]`."""
        self.k[layer_id].index_copy_(0, slots, k.to(self.dtype))
        self.v[layer_id].index_copy_(0, slots, v.to(self.dtype))

    def move(self, source: torch.Tensor, destination: torch.Tensor) -> None:
        """Copy slots `source [n]` to `destination [n]` in every layer; the ranges may overlap."""
        for buffer in (*self.k, *self.v):
            # The right side is gathered whole before anything is written.
            buffer.index_copy_(0, destination, buffer.index_select(0, source))
