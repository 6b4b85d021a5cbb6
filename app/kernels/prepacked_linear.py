"""Linear layers over a weight that oneDNN has laid out for itself once (kernel onednn_bf16).

Decoding reads every weight for a few rows, so the layout decides the bandwidth: on a 2-core CPU
with avx512_bf16, [1, 576] x [3072, 576] takes 45 us packed and 97 us through F.linear.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from app.kernels.capability import CpuCapability

ONEDNN_BF16 = "onednn_bf16"
TORCH = "torch"


def choose_prefill_kernel(
    dtype: torch.dtype, device: torch.device, capability: CpuCapability
) -> str:
    """The fastest kernel of linear layers: "onednn_bf16" or "torch"."""
    is_faster = capability.has_onednn and capability.has_native_bf16
    return ONEDNN_BF16 if can_prepack(dtype, device) and is_faster else TORCH


def can_prepack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether oneDNN has a packed layout for such a weight at all."""
    return dtype == torch.bfloat16 and device.type == "cpu"


def prepack_weight(weight: torch.Tensor) -> torch.Tensor:
    """An opaque copy of `weight [out_features, in_features]` for `prepacked_linear`."""
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
    return packed


def prepacked_linear(
    x: torch.Tensor, packed_weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """`x [rows, in_features]` bfloat16 -> `[rows, out_features]` bfloat16."""
    output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
        x, packed_weight, bias, "none", [], ""
    )
    return output


def prepacked_linear_reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """What `prepacked_linear` computes, from the plain weight."""
    return functional.linear(x, weight, bias)
