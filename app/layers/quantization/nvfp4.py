"""NVFP4 in plain torch: 4-bit floats, one fp8 scale a block of 16, one global float scale.

value = fp4 * block_scale * global_scale. Two fp4 codes lie in a byte, the earlier element in the
low half. A code is a sign bit and an index into `FP4_VALUES` (e2m1).
"""

from __future__ import annotations

import torch

BLOCK_SIZE = 16
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FP4_MAX = 6.0
FP8_MAX = 448.0


def dequantize_nvfp4(
    packed: torch.Tensor,
    block_scale: torch.Tensor,
    global_scale: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """`packed [..., K/2]` uint8, `block_scale [..., K/16]` fp8, `global_scale` scalar ->
    `[..., K]` in `dtype`, computed in float32."""
    codes = torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)
    table = torch.tensor((*FP4_VALUES, *(-v for v in FP4_VALUES)), device=packed.device)
    blocks = _in_blocks(table[codes.int()])
    scale = block_scale.float() * global_scale.float()
    return (blocks * scale.unsqueeze(-1)).flatten(-2).to(dtype)


def quantize_nvfp4(
    weight: torch.Tensor, global_scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """`weight [..., K]` -> (packed `[..., K/2]` uint8, block scales `[..., K/16]` fp8 e4m3).

    `global_scale` is ModelOpt's amax / (6 * 448), with which no block scale exceeds fp8's range.
    """
    assert weight.shape[-1] % BLOCK_SIZE == 0, "NVFP4 blocks hold 16 elements"
    blocks = _in_blocks(weight.float())
    scale = blocks.abs().amax(-1) / FP4_MAX / global_scale
    block_scale = scale.clamp(max=FP8_MAX).to(torch.float8_e4m3fn)
    step = block_scale.float() * global_scale
    scaled = blocks / torch.where(step == 0, torch.ones_like(step), step).unsqueeze(-1)
    table = torch.tensor(FP4_VALUES, device=weight.device)
    index = (scaled.abs().unsqueeze(-1) - table).abs().argmin(-1)
    codes = (index + 8 * (scaled < 0)).flatten(-2).to(torch.uint8)
    return codes[..., 0::2] | (codes[..., 1::2] << 4), block_scale


def _in_blocks(tensor: torch.Tensor) -> torch.Tensor:
    """`[..., K]` -> `[..., K/16, 16]`."""
    return tensor.reshape(*tensor.shape[:-1], -1, BLOCK_SIZE)
