"""Rotary position embedding: tables made once, looked up once a forward, applied in each layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from app.layers.rope_frequencies import rope_amplitude, rope_angles
from app.layers.rope_parameters import RopeParameters

# Draft trees reach past the last position of a context that is almost full.
_NUM_HEADROOM = 128


@dataclass(frozen=True, slots=True)
class Rotation:
    """`cos, signed_sin [T, 1, head_dim]` of the rows of a forward; the first half of the sine is
    negated, which turns the usual rotation of halves into a swap."""

    cos: torch.Tensor
    signed_sin: torch.Tensor

    def apply_(self, heads: torch.Tensor) -> None:
        """Rotate `heads [T, num_heads, head_dim]` in place."""
        swapped = heads.roll(heads.shape[-1] // 2, dims=-1).mul_(self.signed_sin)
        heads.mul_(self.cos).add_(swapped)


class RotaryEmbedding(nn.Module):
    """Tables in float32 for `context_len` positions and some headroom."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(
        self, rope: RopeParameters, *, head_dim: int, context_len: int, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.dtype = dtype
        angles = rope_angles(rope, head_dim, context_len + _NUM_HEADROOM)
        amplitude = rope_amplitude(rope)
        # Both halves of a head have the same angles: one is stored.
        self.register_buffer("cos", angles.cos().mul_(amplitude), persistent=False)
        self.register_buffer("sin", angles.sin().mul_(amplitude), persistent=False)

    def forward(self, positions: torch.Tensor) -> Rotation:
        """The rotation of rows at `positions [T]`."""
        cos = self.cos[positions].to(self.dtype)
        sin = self.sin[positions].to(self.dtype)
        return Rotation(
            cos=torch.cat((cos, cos), dim=-1).unsqueeze(1),
            signed_sin=torch.cat((-sin, sin), dim=-1).unsqueeze(1),
        )
